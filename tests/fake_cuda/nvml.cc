// A library that stands in for libnvidia-ml.so.1, of the GPUs of the fake driver. The environment
// variable FAKE_NVML lists functions, as "nvmlDeviceGetTemperature,...", that answer that this GPU
// does not support them; "nvmlInit_v2" among them is a library that does not start.

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace harmony::fake_cuda {
namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6;

// As nvml.h has it.
struct Memory {
  unsigned long long total, free, used;
};

bool Lacks(const char* function) {
  const char* lacking = getenv("FAKE_NVML");
  return lacking != nullptr && strstr(lacking, function) != nullptr;
}

// A device's handle is its number from 1 on.
unsigned NumberOf(const void* device) {
  return static_cast<unsigned>(reinterpret_cast<size_t>(device));
}

}  // namespace

#define FAKE_NVML_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_NVML_EXPORT int nvmlInit_v2() { return Lacks("nvmlInit_v2") ? kNotSupported : kSuccess; }

// The places that the fake driver gives its devices.
FAKE_NVML_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  unsigned number = 0;
  if (sscanf(bus, "0000:%02X:00.0", &number) != 1 || number == 0) return kNotFound;
  *device = reinterpret_cast<void*>(static_cast<size_t>(number));
  return kSuccess;
}

FAKE_NVML_EXPORT int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* value) {
  if (Lacks("nvmlDeviceGetTemperature") || sensor != 0) return kNotSupported;
  *value = 40 + NumberOf(device);
  return kSuccess;
}

// Of SMs and of memory.
FAKE_NVML_EXPORT int nvmlDeviceGetClockInfo(void*, unsigned which, unsigned* value) {
  if (Lacks("nvmlDeviceGetClockInfo") || (which != 1 && which != 2)) return kNotSupported;
  *value = which == 1 ? 1980 : 2619;
  return kSuccess;
}

// Sent by the GPU, and received.
FAKE_NVML_EXPORT int nvmlDeviceGetPcieThroughput(void*, unsigned which, unsigned* value) {
  if (Lacks("nvmlDeviceGetPcieThroughput") || which > 1) return kNotSupported;
  *value = which == 0 ? 3000 : 25'100'000;
  return kSuccess;
}

FAKE_NVML_EXPORT int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  if (Lacks("nvmlDeviceGetMemoryInfo")) return kNotSupported;
  *memory = {.total = 8ull << 30, .free = 5ull << 30, .used = 3ull << 30};
  return kSuccess;
}

}  // namespace harmony::fake_cuda
