#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "common/base/random.h"
#include "worker/cuda/kernels.h"

namespace harmony::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNone = -1;
constexpr int64_t kMostBlocks = 4096;  // each thread takes several elements where there are more

int BlocksFor(int64_t count) {
  return static_cast<int>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
}

// The position of this thread among all, and how many there are.
__device__ int64_t First() { return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; }
__device__ int64_t Stride() { return gridDim.x * static_cast<int64_t>(blockDim.x); }

__device__ bool IsFinite(float x) { return isfinite(x); }
__device__ bool IsFinite(double x) { return isfinite(x); }
__device__ bool IsFinite(__nv_bfloat16 x) { return isfinite(__bfloat162float(x)); }
__device__ bool IsFinite(__half x) { return isfinite(__half2float(x)); }

template <typename T>
__global__ void CheckFiniteKernel(const T* numbers, int64_t count, int tag, int* first_bad) {
  bool bad = false;
  for (int64_t i = First(); i < count; i += Stride()) bad |= !IsFinite(numbers[i]);
  if (bad) atomicCAS(first_bad, kNone, tag);
}

__global__ void NarrowKernel(const float* from, int64_t count, __nv_bfloat16* to) {
  for (int64_t i = First(); i < count; i += Stride()) to[i] = __float2bfloat16_rn(from[i]);
}

template <bool kNarrow>
__global__ void AddKernel(const float* from, int64_t count, float* to) {
  const auto rounded = [](float x) {
    return kNarrow ? __bfloat162float(__float2bfloat16_rn(x)) : x;
  };
  for (int64_t i = First(); i < count; i += Stride()) to[i] = rounded(to[i]) + rounded(from[i]);
}

// Philox4x32, as common/base/random.h defines it for the CPU.
__device__ void Philox(const PhiloxConstants constants, uint64_t key, uint64_t low, uint64_t high,
                       uint32_t words[4]) {
  uint32_t c[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                   static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < constants.rounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(constants.multiplier0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(constants.multiplier1) * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k0 += constants.weyl0;
    k1 += constants.weyl1;
  }
  for (int i = 0; i < 4; ++i) words[i] = c[i];
}

// A block of four numbers a thread; `blocks` of each sample.
__global__ void DropoutMaskKernel(const PhiloxConstants constants, const int64_t* keys,
                                  int64_t samples, int64_t elements, int64_t blocks,
                                  uint64_t numbers, uint64_t threshold, bool* mask) {
  for (int64_t i = First(); i < samples * blocks; i += Stride()) {
    const int64_t sample = i / blocks, block = i % blocks;
    uint32_t words[4];
    Philox(constants, static_cast<uint64_t>(keys[sample]), static_cast<uint64_t>(block), numbers,
           words);
    for (int64_t word = 0; word < 4 && block * 4 + word < elements; ++word) {
      mask[sample * elements + block * 4 + word] = words[word] >= threshold;
    }
  }
}

template <typename T>
void LaunchCheck(const void* numbers, int64_t count, int tag, int* first_bad, cudaStream_t stream) {
  CheckFiniteKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<const T*>(numbers),
                                                               count, tag, first_bad);
}

}  // namespace

void CheckFinite(const void* numbers, NumberKind kind, int64_t count, int tag, int* first_bad,
                 cudaStream_t stream) {
  if (count == 0) return;
  switch (kind) {
    case NumberKind::kF32:
      return LaunchCheck<float>(numbers, count, tag, first_bad, stream);
    case NumberKind::kF64:
      return LaunchCheck<double>(numbers, count, tag, first_bad, stream);
    case NumberKind::kBf16:
      return LaunchCheck<__nv_bfloat16>(numbers, count, tag, first_bad, stream);
    case NumberKind::kF16:
      return LaunchCheck<__half>(numbers, count, tag, first_bad, stream);
  }
}

void Narrow(const float* from, int64_t count, uint16_t* to, cudaStream_t stream) {
  if (count == 0) return;
  NarrowKernel<<<BlocksFor(count), kThreads, 0, stream>>>(from, count,
                                                          reinterpret_cast<__nv_bfloat16*>(to));
}

void AddNumbers(const float* from, int64_t count, bool narrow, float* to, cudaStream_t stream) {
  if (count == 0) return;
  const auto kernel = narrow ? AddKernel<true> : AddKernel<false>;
  kernel<<<BlocksFor(count), kThreads, 0, stream>>>(from, count, to);
}

void DropoutMask(const int64_t* keys, int64_t samples, int64_t elements, uint64_t stream_of_numbers,
                 uint64_t threshold, bool* mask, cudaStream_t stream) {
  const int64_t blocks = (elements + 3) / 4;
  if (samples * blocks == 0) return;
  DropoutMaskKernel<<<BlocksFor(samples * blocks), kThreads, 0, stream>>>(
      kPhilox, keys, samples, elements, blocks, stream_of_numbers, threshold, mask);
}

}  // namespace harmony::worker::cuda
