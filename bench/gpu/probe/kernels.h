#pragma once

// The kernels of the probe, by the CUDA runtime in the caller's current context. Each returns null,
// or the name of the error.

#include <cuda.h>

#include <cstdint>

namespace harmony::bench {

// Bit patterns of bf16 numbers, and of fp32 ones where two are read as one: random, 0.5 to 1,
// either sign. Never zeros, which products and the memory handle with less power.
const char* LaunchFill(CUdeviceptr words, uint64_t count, uint32_t seed, CUstream stream);
// y = (x + y) / 2 on `count` fp32 numbers: as much memory traffic as the device can do.
const char* LaunchAverage(CUdeviceptr y, CUdeviceptr x, uint64_t count, CUstream stream);
// Multiplications and additions only; `blocks` words of `sink` are written.
const char* LaunchArithmetic(CUdeviceptr sink, int blocks, int rounds, CUstream stream);
int RuntimeVersion();

}  // namespace harmony::bench
