#pragma once

// The part of the arena that gradients pass through on the way to their update (eager updates), in
// issue order. A backward group takes one piece for all its gradients, in slots that follow each
// other, and gives back each slot when the update that reads it has been issued; pieces are given
// in the order of the groups, behind the last one where there is room, else wherever there is:
// after a fault pieces lie apart, and the place of a group that has to run again is between them.
// So a group that fits the ring alone always gets its piece. PURE.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/base/units.h"
#include "coordinator/dispatch/memory/region_ledger.h"

namespace harmony::dispatch {

class GradientRing {
 public:
  GradientRing(Bytes begin, Bytes size) : begin_(begin), size_(size), cursor_(begin) {}

  struct Piece {
    std::vector<Bytes> slots;  // where they begin
    // Of the first to write into any of them: a gradient that is committed in a piece means that
    // nothing is left to do of those whose place the piece has taken.
    Users waits;
  };
  // The next piece, of slots of these sizes; or nothing when there is no room for all of them yet.
  std::optional<Piece> Take(absl::Span<const Bytes> sizes);
  // A slot that records of an earlier generation hold.
  void Pin(Bytes begin, Bytes end);
  // Of a slot, by where it begins.
  void Release(Bytes begin, const Users& users) { ledger_.Release(begin, users); }

  Bytes size() const { return size_; }
  Bytes peak() const { return ledger_.peak(); }

 private:
  Bytes begin_, size_, cursor_;
  RegionLedger ledger_;
};

}  // namespace harmony::dispatch
