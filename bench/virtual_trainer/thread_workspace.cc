#include "bench/virtual_trainer/thread_workspace.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <optional>

#include "worker/device/sim_allocator.h"

namespace harmony::bench {
namespace {

thread_local ThreadWorkspace* current = nullptr;

}  // namespace

class ThreadAllocator : public c10::Allocator {
 public:
  // LibTorch's from then on.
  static void Install() {
    static const bool installed = [] {
      before = c10::GetCPUAllocator();
      c10::SetCPUAllocator(new ThreadAllocator, /*priority=*/100);  // outlives every static tensor
      return true;
    }();
    (void)installed;
  }

  c10::DataPtr allocate(size_t n) override {
    if (current == nullptr) return before->allocate(n);
    if (n == 0) return {nullptr, nullptr, &Delete, c10::Device(c10::kCPU)};
    const Bytes size(static_cast<int64_t>(n));
    const std::optional<Bytes> offset = current->fit_.Take(size);
    if (!offset.has_value()) worker::RaiseOutOfMemory(size, current->fit_.usage());
    std::byte* const data = current->span_.data() + offset->count();
    return {data, data, &Delete, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }

 private:
  static void Delete(void* data) {
    if (data == nullptr) return;
    auto* const at = static_cast<std::byte*>(data);
    if (current != nullptr && at >= current->span_.begin() && at < current->span_.end()) {
      current->fit_.Give(Bytes(at - current->span_.data()));
    } else {
      before->raw_deleter()(data);
    }
  }

  static c10::Allocator* before;  // what it was
};

c10::Allocator* ThreadAllocator::before = nullptr;

ThreadWorkspace::ThreadWorkspace(absl::Span<std::byte> span)
    : span_(span), fit_(Bytes(static_cast<int64_t>(span.size()))) {
  ThreadAllocator::Install();
  current = this;
}

ThreadWorkspace::~ThreadWorkspace() { current = nullptr; }

}  // namespace harmony::bench
