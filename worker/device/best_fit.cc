#include "worker/device/best_fit.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace harmony::worker {

BestFit::BestFit(Bytes capacity) : capacity_(capacity.count() & ~(kSlotAlignment - 1)) {
  if (capacity_ > 0) AddFree(0, capacity_);
}

std::optional<Bytes> BestFit::Take(Bytes wanted) {
  const int64_t size = wanted.AlignUp(kSlotAlignment).count();
  const auto hole = free_by_size_.lower_bound({size, 0});
  if (hole == free_by_size_.end()) return std::nullopt;
  const auto [hole_size, offset] = *hole;
  RemoveFree(offset, hole_size);
  if (hole_size > size) AddFree(offset + size, hole_size - size);
  used_[offset] = size;
  current_ += size;
  peak_ = std::max(peak_, current_);
  peak_extent_ = std::max(peak_extent_, offset + size);
  return Bytes(offset);
}

bool BestFit::Give(Bytes given) {
  const auto it = used_.find(given.count());
  if (it == used_.end()) return false;
  int64_t offset = it->first;
  int64_t size = it->second;
  used_.erase(it);
  current_ -= size;
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && next->first == offset + size) {
    const auto [next_offset, next_size] = *next;
    size += next_size;
    RemoveFree(next_offset, next_size);
  }
  next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.begin()) {
    const auto [before_offset, before_size] = *std::prev(next);
    if (before_offset + before_size == offset) {
      RemoveFree(before_offset, before_size);
      offset = before_offset;
      size += before_size;
    }
  }
  AddFree(offset, size);
  return true;
}

BestFit::Usage BestFit::usage() const {
  const int64_t largest = free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  return Usage{Bytes(capacity_), Bytes(current_), Bytes(peak_), Bytes(peak_extent_),
               Bytes(largest)};
}

void BestFit::ResetPeak() {
  peak_ = current_;
  peak_extent_ = used_.empty() ? 0 : used_.rbegin()->first + used_.rbegin()->second;
}

std::string OutOfMemoryText(Bytes wanted, const BestFit::Usage& usage) {
  return absl::StrCat("out of device memory: ", FormatBytesExact(wanted.AlignUp(kSlotAlignment)),
                      " requested, ", FormatBytesExact(usage.capacity - usage.current),
                      " free in a workspace of ", FormatBytesExact(usage.capacity),
                      ", the largest hole is ", FormatBytesExact(usage.largest_free));
}

void BestFit::AddFree(int64_t offset, int64_t size) {
  free_by_offset_[offset] = size;
  free_by_size_.insert({size, offset});
}

void BestFit::RemoveFree(int64_t offset, int64_t size) {
  free_by_offset_.erase(offset);
  free_by_size_.erase({size, offset});
}

}  // namespace harmony::worker
