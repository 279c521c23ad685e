#pragma once

// The CPU's own reading of device addresses, and loops over memory that run on ATen's threads.

#include <cstdint>

#include "worker/device/device_tensor.h"

namespace harmony::worker {

inline DeviceAddress AddressOf(const void* data) {
  return DeviceAddress(reinterpret_cast<uintptr_t>(data));
}

// Null for no address.
template <typename T>
T* HostPointer(DeviceAddress address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address.value()));
}

// False when any value is infinite or not a number.
bool AllFinite(const float* x, int64_t count);

// Rounds to the nearest bf16, ties to even; what is not a number stays so. To other memory, on the
// calling thread.
void Narrow(const float* x, int64_t n, uint16_t* out);

// The same on ATen's threads, to memory that begins at `from` or before it, and may overlap with
// it.
void RoundToBf16(const float* from, int64_t count, uint16_t* to);

// Adds to numbers in other memory, on ATen's threads; where `narrow`, both are rounded to the
// nearest bf16 before.
void AddNumbers(const float* from, int64_t count, bool narrow, float* to);

void ZeroBytes(void* data, int64_t count);

// Sets the threads of ATen's operations (and 1 between operations), for those that the calling
// thread starts. The first call comes before any work.
void SetComputeThreads(int threads);

}  // namespace harmony::worker
