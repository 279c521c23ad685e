#include "worker/device/sim_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "worker/device/offered_places.h"

namespace harmony::worker {
namespace {

// The deleter of a tensor is a plain function that gets an address: it finds the allocator here.
// One entry in a worker; tests have several, one after the other.
class Registry {
 public:
  struct Entry {
    const char* begin;
    const char* end;
    c10::Allocator* allocator;
  };

  void Add(const Entry& entry) {
    MutexLock lock(mutex_);
    entries_.push_back(entry);
  }
  void Remove(const c10::Allocator* allocator) {
    MutexLock lock(mutex_);
    std::erase_if(entries_, [&](const Entry& entry) { return entry.allocator == allocator; });
  }
  c10::Allocator* Find(const void* data) {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.begin <= data && data < entry.end) return entry.allocator;
    }
    return nullptr;
  }
  static Registry& Get() {
    static Registry* registry = new Registry;  // outlives every static tensor
    return *registry;
  }

 private:
  Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

class SimAllocator::Impl : public c10::Allocator {
 public:
  Impl(void* base, Bytes size) : base_(static_cast<char*>(base)) {
    capacity_ = size.count() & ~(kSlotAlignment - 1);
    {
      MutexLock lock(mutex_);
      if (capacity_ > 0) AddFree(0, capacity_);
    }
    Registry::Get().Add({base_, base_ + capacity_, this});
  }
  ~Impl() override { Registry::Get().Remove(this); }

  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &Deleter, c10::Device(c10::kCPU)};
    if (void* place = OfferedPlaces::Take(n)) {
      Lend(static_cast<char*>(place));
      return {place, place, &Deleter, c10::kCPU};
    }
    const int64_t size = Bytes(static_cast<int64_t>(n)).AlignUp(kSlotAlignment).count();
    MutexLock lock(mutex_);
    const auto hole = free_by_size_.lower_bound({size, 0});
    if (hole == free_by_size_.end()) RaiseOutOfMemory(size);
    const auto [hole_size, offset] = *hole;
    RemoveFree(offset, hole_size);
    if (hole_size > size) AddFree(offset + size, hole_size - size);
    used_[offset] = size;
    current_ += size;
    peak_ = std::max(peak_, current_);
    peak_extent_ = std::max(peak_extent_, offset + size);
    char* data = base_ + offset;
    return {data, data, &Deleter, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Deleter; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

  Usage usage() const {
    MutexLock lock(mutex_);
    return Usage{Bytes(capacity_), Bytes(current_), Bytes(peak_), Bytes(peak_extent_),
                 Bytes(LargestFree())};
  }

  void ResetPeak() {
    MutexLock lock(mutex_);
    peak_ = current_;
    peak_extent_ = used_.empty() ? 0 : used_.rbegin()->first + used_.rbegin()->second;
  }

  c10::Allocator* previous = nullptr;

 private:
  static void Deleter(void* data) {
    if (!data) return;
    // No entry: a tensor outlived its span, whose memory is not ours any more.
    if (auto* impl = static_cast<Impl*>(Registry::Get().Find(data))) {
      impl->Free(static_cast<char*>(data));
    }
  }

  // A place in the span has an owner besides whoever takes it, and the deleter knows only the
  // address (oneDNN's temporaries are freed by that alone): the last to free it frees it.
  void Lend(char* place) {
    if (place < base_ || place >= base_ + capacity_) return;
    MutexLock lock(mutex_);
    ++lent_[place - base_];
  }

  void Free(char* data) {
    MutexLock lock(mutex_);
    if (const auto lent = lent_.find(data - base_); lent != lent_.end()) {
      if (--lent->second == 0) lent_.erase(lent);
      return;
    }
    const auto it = used_.find(data - base_);
    if (it == used_.end()) return;
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
  }

  void AddFree(int64_t offset, int64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    free_by_offset_[offset] = size;
    free_by_size_.insert({size, offset});
  }
  void RemoveFree(int64_t offset, int64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    free_by_offset_.erase(offset);
    free_by_size_.erase({size, offset});
  }
  int64_t LargestFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  }

  [[noreturn]] void RaiseOutOfMemory(int64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     "out of device memory: ", FormatBytesExact(Bytes(size)), " requested, ",
                     FormatBytesExact(Bytes(capacity_ - current_)), " free in a workspace of ",
                     FormatBytesExact(Bytes(capacity_)), ", the largest hole is ",
                     FormatBytesExact(Bytes(LargestFree())));
    std::abort();
  }

  char* const base_;
  int64_t capacity_ = 0;

  mutable Mutex mutex_;
  std::map<int64_t, int64_t> used_ ABSL_GUARDED_BY(mutex_);  // offset -> size
  std::map<int64_t, int> lent_ ABSL_GUARDED_BY(mutex_);      // offset -> tensors beside its owner
  // offset -> size, never adjacent; and (size, offset)
  std::map<int64_t, int64_t> free_by_offset_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int64_t, int64_t>> free_by_size_ ABSL_GUARDED_BY(mutex_);
  int64_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0, peak_extent_ ABSL_GUARDED_BY(mutex_) = 0;
};

SimAllocator::SimAllocator(void* base, Bytes size) : impl_(std::make_unique<Impl>(base, size)) {}
SimAllocator::~SimAllocator() = default;

void SimAllocator::Activate() {
  impl_->previous = c10::GetCPUAllocator();
  c10::SetCPUAllocator(impl_.get(), /*priority=*/100);
}

void SimAllocator::Deactivate() { c10::SetCPUAllocator(impl_->previous, /*priority=*/100); }

SimAllocator::Usage SimAllocator::usage() const { return impl_->usage(); }
void SimAllocator::ResetPeak() { impl_->ResetPeak(); }

}  // namespace harmony::worker
