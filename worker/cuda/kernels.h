#pragma once

// Kernels of our own. Each is queued on the stream and returns at once; an error of the launch is
// the stream's.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace harmony::worker::cuda {

// How the bits of a number are laid out.
enum class NumberKind { kF32, kF64, kBf16, kF16 };

// Sets *first_bad to `tag` where it is -1 and any of the numbers is infinite or not a number: of
// several checks on a stream the first that finds something stays.
void CheckFinite(const void* numbers, NumberKind kind, int64_t count, int tag, int* first_bad,
                 cudaStream_t stream);

// Rounds to the nearest bf16, ties to even. The memories do not overlap.
void Narrow(const float* from, int64_t count, uint16_t* to, cudaStream_t stream);

// Adds to `to`; where `narrow`, both are rounded to the nearest bf16 before. No overlap.
void AddNumbers(const float* from, int64_t count, bool narrow, float* to, cudaStream_t stream);

// Which elements dropout keeps, as worker/graphs/dropout_mask.h draws them: `elements` of each of
// the samples, by its key.
void DropoutMask(const int64_t* keys, int64_t samples, int64_t elements, uint64_t stream_of_numbers,
                 uint64_t threshold, bool* mask, cudaStream_t stream);

}  // namespace harmony::worker::cuda
