#include "worker/device/cpu_memory.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <bit>
#include <cstring>

namespace harmony::worker {
namespace {

constexpr int64_t kGrainElements = 16384;  // elements below which a second thread does not pay

// Compiled for each level of the CPU, chosen when the program is loaded. Values with all exponent
// bits set.
__attribute__((target_clones("avx512f", "avx2", "default"))) bool AnyNonFinite(const float* x,
                                                                               int64_t n) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    found |= (std::bit_cast<uint32_t>(x[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return found != 0;
}

}  // namespace

bool AllFinite(const float* x, int64_t count) {
  std::atomic<bool> finite{true};
  at::parallel_for(0, count, kGrainElements, [&](int64_t begin, int64_t end) {
    if (AnyNonFinite(x + begin, end - begin)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load(std::memory_order_relaxed);
}

void ZeroBytes(void* data, int64_t count) {
  at::parallel_for(0, count, 32 * kGrainElements, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(data) + begin, 0, static_cast<size_t>(end - begin));
  });
}

void SetComputeThreads(int threads) {
  at::set_num_threads(threads);
  // LibTorch takes this one once in a process.
  static const bool one_between_operations = [] {
    at::set_num_interop_threads(1);
    return true;
  }();
  (void)one_between_operations;
}

}  // namespace harmony::worker
