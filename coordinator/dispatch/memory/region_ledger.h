#pragma once

// Who holds, and who last used, each piece of one memory (a device's resident region, the gradient
// ring). Memory is given out in issue order: a released piece remembers the semaphores of its last
// users, and whoever takes it next waits for them. PURE.

#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/base/units.h"
#include "common/command/command.h"

namespace harmony::dispatch {

// Commands that used a piece of memory last: what a later user has to wait for, and the modelled
// time when all of them will have finished.
struct Users {
  absl::InlinedVector<command::SemaphoreWait, 4> waits;  // one per semaphore, the highest value
  Nanos finish;

  void Add(uint32_t semaphore, uint64_t value, Nanos at);
  void Merge(const Users& other);
};

class RegionLedger {
 public:
  // No part of [begin, end) is held.
  bool IsFree(Bytes begin, Bytes end) const;
  // The first place of this size in [begin, end) of which no part is held; or none.
  std::optional<Bytes> FirstFree(Bytes begin, Bytes end, Bytes size) const;
  // Takes [begin, end); the result names the last users of what was there. REQUIRES: IsFree.
  Users Hold(Bytes begin, Bytes end) { return HoldPieces(begin, {end - begin}); }
  // Takes pieces of these sizes that follow each other, which are given back one by one.
  Users HoldPieces(Bytes begin, absl::Span<const Bytes> sizes);
  // Gives back a piece that was taken. REQUIRES: held from `begin` on.
  void Release(Bytes begin, const Users& users);

  Bytes held() const { return held_; }
  Bytes peak() const { return peak_; }

 private:
  struct Piece {
    Bytes begin, end;
    bool held = false;
    Users users;  // of a released piece
  };
  // The number of the first piece that ends behind it.
  size_t FirstBehind(Bytes begin) const;

  std::vector<Piece> pieces_;  // disjoint, ascending; what no piece covers was never used
  std::vector<Piece> made_;    // HoldPieces': kept for its room
  Bytes held_, peak_;
};

}  // namespace harmony::dispatch
