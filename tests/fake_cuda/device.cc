// Devices, contexts and errors of the fake driver.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/checks.h"
#include "tests/fake_cuda/functions.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

struct ErrorText {
  const char* name;
  const char* text;
};

// Those that tests and the fake driver itself give.
const ErrorText* FindError(CUresult error) {
  static const auto* const errors = new std::map<CUresult, ErrorText>{
#define FAKE_CUDA_ERROR(name, text) \
  {                                 \
    name, ErrorText { #name, text } \
  }
      FAKE_CUDA_ERROR(CUDA_SUCCESS, "no error"),
      FAKE_CUDA_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
      FAKE_CUDA_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
      FAKE_CUDA_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
      FAKE_CUDA_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE,
                      "CUDA-capable device(s) is/are busy or unavailable"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
      FAKE_CUDA_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
      FAKE_CUDA_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
      FAKE_CUDA_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
      FAKE_CUDA_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE,
                      "uncorrectable NVLink error detected during the execution"),
      FAKE_CUDA_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported"),
      FAKE_CUDA_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
      FAKE_CUDA_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
      FAKE_CUDA_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
      FAKE_CUDA_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
      FAKE_CUDA_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                      "part or all of the requested memory range is already mapped"),
      FAKE_CUDA_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                      "pointer does not correspond to a registered memory region"),
      FAKE_CUDA_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
      FAKE_CUDA_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
      FAKE_CUDA_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
      FAKE_CUDA_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef FAKE_CUDA_ERROR
  };
  const auto it = errors->find(error);
  return it == errors->end() ? nullptr : &it->second;
}

int AttributeOf(CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return TheState().config.capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return TheState().config.capability % 10;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 2619000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 5120;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device + 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      return 1;
    default:
      return 0;
  }
}

CUresult MakeContext(CUdevice device, bool primary, uint64_t& handle) {
  State& state = TheState();
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (TakenMemory(device) + state.config.context > state.config.memory) {
    return Refuse(CUDA_ERROR_OUT_OF_MEMORY, "no memory for another context");
  }
  handle = NewHandle();
  state.contexts[handle] = Context{device, primary};
  return CUDA_SUCCESS;
}

// With all that belongs to it.
void DestroyContext(uint64_t handle, const char* function) {
  State& state = TheState();
  for (const auto& [number, stream] : state.streams) {
    if (stream->context != handle) continue;
    DieIfBusy(*stream, function);
    stream->destroyed = true;
    stream->changed.NotifyOne();
  }
  std::erase_if(state.streams, [&](const auto& entry) { return entry.second->context == handle; });
  std::erase_if(state.events, [&](const auto& entry) { return entry.second->context == handle; });
  for (const auto& [begin, registration] : state.memory.registrations) {
    if (registration.context != handle) continue;
    DieIfInUse(reinterpret_cast<const void*>(begin), registration.size, function);
  }
  std::erase_if(state.memory.registrations,
                [&](const auto& entry) { return entry.second.context == handle; });
  state.contexts.erase(handle);
}

std::map<uint64_t, Context>::iterator FindPrimary(CUdevice device) {
  auto& contexts = TheState().contexts;
  return std::find_if(contexts.begin(), contexts.end(), [&](const auto& entry) {
    return entry.second.primary && entry.second.device == device;
  });
}

}  // namespace

CUresult Init(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  State& state = TheState();
  if (state.config.devices == 0) return CUDA_ERROR_NO_DEVICE;
  if (state.initialised) return CUDA_SUCCESS;
  state.initialised = true;
  state.pid = getpid();
  return CUDA_SUCCESS;
}

CUresult DriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = TheState().config.driver;
  return CUDA_SUCCESS;
}

CUresult GetErrorName(CUresult error, const char** name) {
  const ErrorText* const found = FindError(error);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult GetErrorString(CUresult error, const char** text) {
  const ErrorText* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult DeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = TheState().config.devices;
  return CUDA_SUCCESS;
}

CUresult DeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult DeviceGetName(char* name, int length, CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(length), "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = AttributeOf(attribute, device);
  return CUDA_SUCCESS;
}

CUresult DeviceGetPCIBusId(char* id, int length, CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (id == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
  snprintf(id, static_cast<size_t>(length), "0000:%02X:00.0",
           static_cast<unsigned>(device + 1) % 256);
  return CUDA_SUCCESS;
}

CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(uuid->bytes, "fake-cuda-gpu-00", sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>(uuid->bytes[15] + device);
  return CUDA_SUCCESS;
}

CUresult DeviceTotalMem(size_t* bytes, CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = TheState().config.memory;
  return CUDA_SUCCESS;
}

CUresult DeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (!IsDevice(device) || !IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *can = device != peer && TheState().config.peers ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CtxCreate(CUcontext* context, CUctxCreateParams* params, unsigned int, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params != nullptr) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuCtxCreate: parameters are not supported");
  }
  uint64_t handle = 0;
  const CUresult made = MakeContext(device, false, handle);
  if (made != CUDA_SUCCESS) return made;
  PushContext(handle);
  *context = reinterpret_cast<CUcontext>(handle);
  return CUDA_SUCCESS;
}

CUresult CtxDestroy(CUcontext handle) {
  const Context* const context = FindHandle(TheState().contexts, handle);
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  DestroyContext(NumberOf(handle), "cuCtxDestroy");
  if (CurrentContext() == NumberOf(handle)) PopContext();
  return CUDA_SUCCESS;
}

CUresult CtxSetCurrent(CUcontext handle) {
  if (handle != nullptr && FindHandle(TheState().contexts, handle) == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  PopContext();
  if (handle != nullptr) PushContext(NumberOf(handle));
  return CUDA_SUCCESS;
}

CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto it = FindPrimary(device);
  if (it == TheState().contexts.end()) {
    uint64_t handle = 0;
    const CUresult made = MakeContext(device, true, handle);
    if (made != CUDA_SUCCESS) return made;
    it = FindPrimary(device);
  }
  ++it->second.retained;
  *context = reinterpret_cast<CUcontext>(it->first);
  return CUDA_SUCCESS;
}

CUresult DevicePrimaryCtxRelease(CUdevice device) {
  const auto it = FindPrimary(device);
  if (it == TheState().contexts.end()) return CUDA_ERROR_INVALID_CONTEXT;
  if (--it->second.retained == 0) DestroyContext(it->first, "cuDevicePrimaryCtxRelease");
  return CUDA_SUCCESS;
}

CUresult MemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = TheState();
  const uint64_t taken = TakenMemory(state.contexts.at(CurrentContext()).device);
  *total = state.config.memory;
  *free = taken < *total ? *total - taken : 0;
  return CUDA_SUCCESS;
}

}  // namespace harmony::fake_cuda
