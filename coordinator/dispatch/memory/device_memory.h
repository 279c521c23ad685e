#pragma once

// The resident region of one device, in issue order. PURE.
//
// A device works through *executions* (a layer group in one phase of one step), strictly in order.
// Each execution has a list of items (weights, streaming slots, gradients) stacked from one end of
// the region: executions take the two ends in turn. So two neighbours never mix, an execution needs
// nothing but the release of what earlier executions held, and there is no fragmentation: an
// execution that fits the region alone always gets its memory, and two neighbours that fit together
// overlap (prefetch, double buffering).

#include <cstdint>
#include <deque>

#include "common/base/units.h"
#include "coordinator/dispatch/memory/region_ledger.h"

namespace harmony::dispatch {

class DeviceMemory {
 public:
  explicit DeviceMemory(Bytes resident)
      : resident_(resident.count() / kSlotAlignment * kSlotAlignment) {}

  // The items added from now on belong to the next execution.
  void BeginExecution();
  // Returns the item's number. REQUIRES: the execution's items fit the region.
  int64_t AddItem(Bytes size);

  // Gives memory to waiting items, in order, as far as possible. True when it gave any.
  bool Admit();

  bool admitted(int64_t item) const { return item < next_; }
  // And not given back.
  bool held(int64_t item) const { return item >= base_ && admitted(item) && !at(item).released; }
  Bytes offset(int64_t item) const { return at(item).begin; }
  // Whom the first writer of the item waits for. REQUIRES: admitted, not released.
  const Users& waits(int64_t item) const { return at(item).waits; }
  // All commands that touch the item have been issued; `users` are the last of them.
  void Release(int64_t item, const Users& users);

  Bytes resident() const { return resident_; }
  Bytes held() const { return ledger_.held(); }
  Bytes peak() const { return ledger_.peak(); }
  int64_t items() const { return base_ + static_cast<int64_t>(items_.size()); }

 private:
  struct Item {
    Bytes begin, end;
    bool released = false;
    Users waits;
  };
  const Item& at(int64_t item) const { return items_[static_cast<size_t>(item - base_)]; }

  Bytes resident_;
  RegionLedger ledger_;
  std::deque<Item> items_;
  int64_t base_ = 0;  // number of items_.front()
  int64_t next_ = 0;  // first item without memory
  bool from_top_ = true;
  Bytes stacked_;  // of the execution being added
};

}  // namespace harmony::dispatch
