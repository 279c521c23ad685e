#pragma once

// The CUDA driver, reached at run time: no program links it, so all of them start on machines
// without one. The types are those of cuda.h; every call goes through the one table below.

#include <cuda.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::cuda {

// Every driver function that Harmony calls, without its prefix "cu". tests/fake_cuda has them all.
#define HARMONY_CUDA_FUNCTIONS(CALL)    \
  /* The driver and its devices. */     \
  CALL(Init)                            \
  CALL(DriverGetVersion)                \
  CALL(GetErrorName)                    \
  CALL(GetErrorString)                  \
  CALL(DeviceGetCount)                  \
  CALL(DeviceGet)                       \
  CALL(DeviceGetName)                   \
  CALL(DeviceGetAttribute)              \
  CALL(DeviceGetPCIBusId)               \
  CALL(DeviceGetUuid)                   \
  CALL(DeviceTotalMem)                  \
  CALL(DeviceCanAccessPeer)             \
  /* Contexts. */                       \
  CALL(CtxCreate)                       \
  CALL(CtxDestroy)                      \
  CALL(CtxSetCurrent)                   \
  CALL(DevicePrimaryCtxRetain)          \
  CALL(DevicePrimaryCtxRelease)         \
  CALL(MemGetInfo)                      \
  /* Memory that outlives its maker. */ \
  CALL(MemGetAllocationGranularity)     \
  CALL(MemCreate)                       \
  CALL(MemRelease)                      \
  CALL(MemExportToShareableHandle)      \
  CALL(MemImportFromShareableHandle)    \
  CALL(MemAddressReserve)               \
  CALL(MemAddressFree)                  \
  CALL(MemMap)                          \
  CALL(MemUnmap)                        \
  CALL(MemSetAccess)                    \
  /* Host memory. */                    \
  CALL(MemHostRegister)                 \
  CALL(MemHostUnregister)               \
  /* Work. */                           \
  CALL(StreamCreate)                    \
  CALL(StreamDestroy)                   \
  CALL(StreamSynchronize)               \
  CALL(EventCreate)                     \
  CALL(EventDestroy)                    \
  CALL(EventRecord)                     \
  CALL(EventQuery)                      \
  CALL(EventElapsedTime)                \
  CALL(MemcpyHtoDAsync)                 \
  CALL(MemcpyDtoHAsync)                 \
  CALL(MemcpyDtoDAsync)                 \
  CALL(MemsetD8Async)

// The least driver that has them all in the forms of cuda.h.
inline constexpr int kLeastDriverVersion = CUDA_VERSION;

struct Driver {
#define HARMONY_CUDA_MEMBER(name) decltype(&cu##name) name = nullptr;
  HARMONY_CUDA_FUNCTIONS(HARMONY_CUDA_MEMBER)
#undef HARMONY_CUDA_MEMBER

  // OK, or what a driver's answer means: ResourceExhausted when memory is missing, Unavailable when
  // the device itself is lost or its context can no longer be used (IsSticky), else Internal.
  // `what`: what was tried, for people.
  absl::Status Check(CUresult result, absl::string_view what) const;
};

// Opens libcuda.so.1 and initialises it: once for each process, which must not fork without exec
// afterwards. FailedPrecondition, with what to do about it: no driver here, one too old, no device,
// or WSL, whose driver lacks what is needed. Any thread.
absl::StatusOr<const Driver*> LoadDriver();

// An error after which nothing works in this process any more: it has to end, and to be started
// anew.
bool IsSticky(CUresult result);

// "12.4" of 12040.
std::string FormatDriverVersion(int version);

}  // namespace harmony::cuda
