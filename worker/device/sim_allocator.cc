#include "worker/device/sim_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "worker/device/best_fit.h"
#include "worker/device/lent_places.h"

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

void RaiseOutOfMemory(Bytes wanted, const BestFit::Usage& usage) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, OutOfMemoryText(wanted, usage));
  std::abort();
}

class SimAllocator::Impl : public c10::Allocator {
 public:
  Impl(void* base, Bytes size) : base_(static_cast<char*>(base)), fit_(size) {
    Registry::Get().Add({base_, base_ + usage().capacity.count(), this});
  }
  ~Impl() override { Registry::Get().Remove(this); }

  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &Deleter, c10::Device(c10::kCPU)};
    if (void* lent = LentPlaces::Take(n)) return {lent, lent, &Deleter, c10::kCPU};
    const Bytes size(static_cast<int64_t>(n));
    MutexLock lock(mutex_);
    const std::optional<Bytes> offset = fit_.Take(size);
    if (!offset.has_value()) RaiseOutOfMemory(size, fit_.usage());
    char* data = base_ + offset->count();
    return {data, data, &Deleter, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Deleter; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

  Usage usage() const {
    MutexLock lock(mutex_);
    return fit_.usage();
  }

  void ResetPeak() {
    MutexLock lock(mutex_);
    fit_.ResetPeak();
  }

  c10::Allocator* previous = nullptr;

 private:
  static void Deleter(void* data) {
    if (!data || LentPlaces::Give(data)) return;
    // No entry: a tensor outlived its span, whose memory is not ours any more.
    if (auto* impl = static_cast<Impl*>(Registry::Get().Find(data))) {
      impl->Free(static_cast<char*>(data));
    }
  }

  void Free(char* data) {
    MutexLock lock(mutex_);
    fit_.Give(Bytes(data - base_));
  }

  char* const base_;
  mutable Mutex mutex_;
  BestFit fit_ ABSL_GUARDED_BY(mutex_);
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
