#include "coordinator/dispatch/memory/device_memory.h"

namespace harmony::dispatch {

void DeviceMemory::BeginExecution() {
  from_top_ = !from_top_;
  stacked_ = Bytes(0);
}

int64_t DeviceMemory::AddItem(Bytes size) {
  const Bytes aligned = size.AlignUp(kSlotAlignment);
  Item& item = items_.emplace_back();
  item.begin = from_top_ ? resident_ - stacked_ - aligned : stacked_;
  item.end = item.begin + aligned;
  stacked_ += aligned;
  return items() - 1;
}

bool DeviceMemory::Admit() {
  bool any = false;
  while (next_ < items()) {
    Item& item = items_[static_cast<size_t>(next_ - base_)];
    if (!ledger_.IsFree(item.begin, item.end)) break;
    if (item.begin < item.end) item.waits = ledger_.Hold(item.begin, item.end);
    ++next_;
    any = true;
  }
  return any;
}

void DeviceMemory::Release(int64_t item, const Users& users) {
  Item& entry = items_[static_cast<size_t>(item - base_)];
  if (entry.begin < entry.end) ledger_.Release(entry.begin, users);
  entry.released = true;
  while (!items_.empty() && items_.front().released) {
    items_.pop_front();
    ++base_;
  }
}

}  // namespace harmony::dispatch
