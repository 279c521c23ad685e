#pragma once

// The CUDA driver, opened at run time, so that the probe starts without one and says so.

#include <cuda.h>

#include <cstdint>
#include <string>

namespace harmony::bench {

// What the parts cannot do without.
#define HARMONY_PROBE_FUNCTIONS(CALL) \
  CALL(Init)                          \
  CALL(DriverGetVersion)              \
  CALL(GetErrorName)                  \
  CALL(DeviceGetCount)                \
  CALL(DeviceGet)                     \
  CALL(DeviceGetName)                 \
  CALL(DeviceGetAttribute)            \
  CALL(DeviceGetPCIBusId)             \
  CALL(DeviceTotalMem)                \
  CALL(DeviceCanAccessPeer)           \
  CALL(CtxCreate)                     \
  CALL(CtxSetCurrent)                 \
  CALL(DevicePrimaryCtxRetain)        \
  CALL(MemGetInfo)                    \
  CALL(MemGetAllocationGranularity)   \
  CALL(MemCreate)                     \
  CALL(MemRelease)                    \
  CALL(MemExportToShareableHandle)    \
  CALL(MemImportFromShareableHandle)  \
  CALL(MemAddressReserve)             \
  CALL(MemMap)                        \
  CALL(MemSetAccess)                  \
  CALL(MemHostRegister)               \
  CALL(MemHostUnregister)             \
  CALL(StreamCreate)                  \
  CALL(StreamSynchronize)             \
  CALL(EventCreate)                   \
  CALL(EventDestroy)                  \
  CALL(EventRecord)                   \
  CALL(EventQuery)                    \
  CALL(EventElapsedTime)              \
  CALL(MemcpyHtoDAsync)               \
  CALL(MemcpyDtoHAsync)

// Null where the driver lacks it, as Harmony's own stand-in for a driver does.
#define HARMONY_PROBE_OPTIONAL_FUNCTIONS(CALL) \
  CALL(CtxGetCurrent)                          \
  CALL(DevicePrimaryCtxGetState)               \
  CALL(EventSynchronize)                       \
  CALL(MemAlloc)                               \
  CALL(MemHostAlloc)                           \
  CALL(MemHostGetDevicePointer)                \
  CALL(StreamWaitValue64)                      \
  CALL(StreamWriteValue64)

struct Driver {
#define HARMONY_PROBE_MEMBER(name) decltype(&cu##name) name = nullptr;
  HARMONY_PROBE_FUNCTIONS(HARMONY_PROBE_MEMBER)
  HARMONY_PROBE_OPTIONAL_FUNCTIONS(HARMONY_PROBE_MEMBER)
#undef HARMONY_PROBE_MEMBER
};

// Opens and initialises the driver. Empty, or why there is none to use.
std::string OpenDriver();
// After OpenDriver; opens it at the first call, and fails this process where there is none.
const Driver& Cuda();

// Fails this process unless the call went well. `what`: what was tried.
void Must(CUresult result, const char* what);
std::string ErrorName(CUresult result);

CUdevice TheDevice();
int Attribute(CUdevice_attribute attribute);
// What the CUDA runtime and PyTorch use, so kernels and cuBLAS work in it, too.
void UsePrimaryContext();
CUstream NewStream();
// `flags`: of cuEventCreate; by default events tell the time.
CUevent NewEvent(unsigned flags = CU_EVENT_DEFAULT);
// Device memory of this process only; fails where cuMemAlloc is missing.
CUdeviceptr Allocate(uint64_t bytes, const char* what);
float MillisecondsBetween(CUevent begin, CUevent end);
// False: not yet. Fails this process on an error.
bool Done(CUevent event);

}  // namespace harmony::bench
