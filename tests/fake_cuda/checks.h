#pragma once

// What a copy has to satisfy when it is enqueued, and what may not happen while it runs. All need
// State::mutex.

#include <cuda.h>

#include <cstddef>

#include "absl/strings/string_view.h"
#include "tests/fake_cuda/stream.h"

namespace harmony::fake_cuda {

// Whether [begin, begin + bytes) is mapped, mapped memory as a whole and accessible by the device
// of `context`, for writing where `write`. Otherwise says what is wrong. `what`: the function.
bool IsDeviceRange(const void* begin, size_t bytes, bool write, uint64_t context,
                   absl::string_view what);

// Within one registration that holds for `context`; pageable where nothing of it is registered;
// wrong otherwise, which is said. Pageable is said, too, where it is refused.
enum class HostRange { kPinned, kPageable, kWrong };
HostRange ClassifyHostRange(const void* begin, size_t bytes, uint64_t context,
                            absl::string_view what);

// Whether all pages of a range are mapped in this process.
bool IsMapped(const void* begin, size_t bytes);

// For who is about to take memory or a stream away from operations queued or running, or that it
// does not know to be done. In a broken context only what is running counts, and is waited for:
// callers cannot wait there.
void DieIfInUse(const void* begin, size_t bytes, absl::string_view what);
void DieIfBusy(const Stream& stream, absl::string_view what);

}  // namespace harmony::fake_cuda
