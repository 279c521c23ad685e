#pragma once

// The part of the arena that gradients pass through on the way to their update (eager updates), in
// issue order. A backward group takes one piece for all its gradients, of all parts, and gives
// it back when its updates have been issued; pieces are given in the order of the groups, so a
// group that fits the ring alone always gets its piece. PURE.

#include <optional>
#include <vector>

#include "common/base/units.h"
#include "coordinator/dispatch/memory/region_ledger.h"

namespace harmony::dispatch {

class GradientRing {
 public:
  GradientRing(Bytes begin, Bytes size) : begin_(begin), size_(size), cursor_(begin) {}

  struct Piece {
    Bytes begin, end;
    Users waits;
  };
  // The next piece, or nothing when it is not free yet.
  std::optional<Piece> Take(Bytes size);
  // A piece that records of an earlier generation hold.
  void Pin(Bytes begin, Bytes end);
  void Release(Bytes begin, const Users& users) { ledger_.Release(begin, users); }

  Bytes size() const { return size_; }
  Bytes peak() const { return ledger_.peak(); }

 private:
  Bytes begin_, size_, cursor_;
  RegionLedger ledger_;
};

}  // namespace harmony::dispatch
