#include <cuda_runtime.h>

#include "bench/gpu/probe/kernels.h"

namespace harmony::bench {
namespace {

constexpr int kThreads = 256;

__global__ void Fill(uint16_t* words, uint64_t count, uint32_t seed) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    uint32_t hash = static_cast<uint32_t>(i) * 0x9E3779B1u + seed;
    hash = (hash ^ (hash >> 16)) * 0x85EBCA6Bu;
    hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
    hash ^= hash >> 16;
    words[i] = static_cast<uint16_t>((hash & 0x807Fu) | 0x3F00u);
  }
}

__global__ void Average(float4* y, const float4* x, uint64_t count) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const float4 a = x[i];
    float4 b = y[i];
    b.x = 0.5f * (a.x + b.x);
    b.y = 0.5f * (a.y + b.y);
    b.z = 0.5f * (a.z + b.z);
    b.w = 0.5f * (a.w + b.w);
    y[i] = b;
  }
}

__global__ void Arithmetic(float* sink, int rounds) {
  // Four chains, so that an instruction need not wait for the one before it.
  float a = 0.5f + static_cast<float>(threadIdx.x) * 1e-3f;
  float b = a + 0.1f, c = a + 0.2f, d = a + 0.3f;
  for (int i = 0; i < rounds; ++i) {
    a = a * 0.999f + 0.001f;
    b = b * 0.999f + 0.002f;
    c = c * 0.999f + 0.003f;
    d = d * 0.999f + 0.004f;
  }
  // Never so; without it the compiler would leave the loop out.
  if (a + b + c + d == 12345.0f) sink[blockIdx.x] = a;
}

const char* Outcome() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorName(error);
}

int BlocksFor(uint64_t threads) {
  const uint64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < 65536 ? blocks : 65536);
}

}  // namespace

const char* LaunchFill(CUdeviceptr words, uint64_t count, uint32_t seed, CUstream stream) {
  Fill<<<BlocksFor(count), kThreads, 0, stream>>>(reinterpret_cast<uint16_t*>(words), count, seed);
  return Outcome();
}

const char* LaunchAverage(CUdeviceptr y, CUdeviceptr x, uint64_t count, CUstream stream) {
  Average<<<BlocksFor(count / 4), kThreads, 0, stream>>>(
      reinterpret_cast<float4*>(y), reinterpret_cast<const float4*>(x), count / 4);
  return Outcome();
}

const char* LaunchArithmetic(CUdeviceptr sink, int blocks, int rounds, CUstream stream) {
  Arithmetic<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<float*>(sink), rounds);
  return Outcome();
}

int RuntimeVersion() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

}  // namespace harmony::bench
