#include "worker/device/cpu_memory.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
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

inline float RoundedToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return std::bit_cast<float>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : rounded);
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void AddStretch(const float* from,
                                                                             int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] + from[i];
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void AddRounded(const float* from,
                                                                             int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = RoundedToBf16(to[i]) + RoundedToBf16(from[i]);
}

// By way of two buffers, since the results may lie where the numbers did.
void RoundStretch(const std::byte* from, int64_t count, std::byte* to) {
  constexpr int64_t kAtOnce = 1024;
  std::array<float, kAtOnce> in;
  std::array<uint16_t, kAtOnce> out;
  for (int64_t begin = 0; begin < count; begin += kAtOnce) {
    const int64_t n = std::min(kAtOnce, count - begin);
    std::memcpy(in.data(), from + begin * 4, static_cast<size_t>(n) * 4);
    Narrow(in.data(), n, out.data());
    std::memcpy(to + begin * 2, out.data(), static_cast<size_t>(n) * 2);
  }
}

}  // namespace

bool AllFinite(const float* x, int64_t count) {
  std::atomic<bool> finite{true};
  at::parallel_for(0, count, kGrainElements, [&](int64_t begin, int64_t end) {
    if (AnyNonFinite(x + begin, end - begin)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load(std::memory_order_relaxed);
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void Narrow(const float* x, int64_t n,
                                                                         uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
}

// The results of numbers [n, 2n) lie before those numbers, and so threads that round them never
// write what another one is yet to read. The first few are one thread's.
void RoundToBf16(const float* from, int64_t count, uint16_t* to) {
  const auto* const in = reinterpret_cast<const std::byte*>(from);
  auto* const out = reinterpret_cast<std::byte*>(to);
  int64_t done = std::min(count, kGrainElements);
  RoundStretch(in, done, out);
  while (done < count) {
    const int64_t until = std::min(count, 2 * done);
    at::parallel_for(done, until, kGrainElements, [&](int64_t begin, int64_t end) {
      RoundStretch(in + begin * 4, end - begin, out + begin * 2);
    });
    done = until;
  }
}

void AddNumbers(const float* from, int64_t count, bool narrow, float* to) {
  at::parallel_for(0, count, 4 * kGrainElements, [&](int64_t begin, int64_t end) {
    (narrow ? AddRounded : AddStretch)(from + begin, end - begin, to + begin);
  });
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
