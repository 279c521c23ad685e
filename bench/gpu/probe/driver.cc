#include "bench/gpu/probe/driver.h"

#include <dlfcn.h>

#include "bench/gpu/probe/process.h"

namespace harmony::bench {
namespace {

Driver& Table() {
  static Driver driver;
  return driver;
}

template <typename Function>
bool Find(decltype(&::cuGetProcAddress) find, const char* name, Function& function) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result = find(name, &address, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &found);
  if (result != CUDA_SUCCESS || address == nullptr) return false;
  function = reinterpret_cast<Function>(address);
  return true;
}

std::string FindAll(decltype(&::cuGetProcAddress) find, Driver& driver) {
#define HARMONY_PROBE_FIND(name) \
  if (!Find(find, "cu" #name, driver.name)) return "the driver lacks cu" #name;
  HARMONY_PROBE_FUNCTIONS(HARMONY_PROBE_FIND)
#undef HARMONY_PROBE_FIND
#define HARMONY_PROBE_FIND(name) Find(find, "cu" #name, driver.name);
  HARMONY_PROBE_OPTIONAL_FUNCTIONS(HARMONY_PROBE_FIND)
#undef HARMONY_PROBE_FIND
  return "";
}

std::string Open(Driver& driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Format("no CUDA driver: %s", dlerror());
  const auto find =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return "the CUDA driver is older than CUDA 12";
  // An older driver would hand out functions of other signatures than those of this cuda.h.
  int version = 0;
  if (!Find(find, "cuDriverGetVersion", driver.DriverGetVersion) ||
      driver.DriverGetVersion(&version) != CUDA_SUCCESS || version < CUDA_VERSION) {
    return Format("the CUDA driver is for CUDA %d.%d, this probe was built for %d.%d",
                  version / 1000, version % 1000 / 10, CUDA_VERSION / 1000,
                  CUDA_VERSION % 1000 / 10);
  }
  const std::string missing = FindAll(find, driver);
  if (!missing.empty()) return missing;
  const CUresult ready = driver.Init(0);
  if (ready != CUDA_SUCCESS) return "the CUDA driver does not start: " + ErrorName(ready);
  int count = 0;
  if (driver.DeviceGetCount(&count) != CUDA_SUCCESS || count <= TheSettings().device) {
    return Format("the CUDA driver shows %d devices, device %d was asked for", count,
                  TheSettings().device);
  }
  return "";
}

}  // namespace

std::string OpenDriver() {
  static const std::string why_not = Open(Table());
  return why_not;
}

const Driver& Cuda() {
  const std::string why_not = OpenDriver();
  if (!why_not.empty()) Fail(why_not);
  return Table();
}

std::string ErrorName(CUresult result) {
  const char* name = nullptr;
  if (Table().GetErrorName == nullptr || Table().GetErrorName(result, &name) != CUDA_SUCCESS ||
      name == nullptr) {
    return Format("error %d", static_cast<int>(result));
  }
  return name;
}

void Must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) Fail(std::string(what) + ": " + ErrorName(result));
}

CUdevice TheDevice() {
  CUdevice device = 0;
  Must(Cuda().DeviceGet(&device, TheSettings().device), "cuDeviceGet");
  return device;
}

int Attribute(CUdevice_attribute attribute) {
  int value = 0;
  const CUresult result = Cuda().DeviceGetAttribute(&value, attribute, TheDevice());
  return result == CUDA_SUCCESS ? value : -1;
}

void UsePrimaryContext() {
  CUcontext context = nullptr;
  Must(Cuda().DevicePrimaryCtxRetain(&context, TheDevice()), "cuDevicePrimaryCtxRetain");
  Must(Cuda().CtxSetCurrent(context), "cuCtxSetCurrent");
}

CUstream NewStream() {
  CUstream stream = nullptr;
  Must(Cuda().StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

CUevent NewEvent(unsigned flags) {
  CUevent event = nullptr;
  Must(Cuda().EventCreate(&event, flags), "cuEventCreate");
  return event;
}

CUdeviceptr Allocate(uint64_t bytes, const char* what) {
  if (Cuda().MemAlloc == nullptr) Fail("the driver lacks cuMemAlloc");
  CUdeviceptr address = 0;
  Must(Cuda().MemAlloc(&address, bytes), what);
  return address;
}

float MillisecondsBetween(CUevent begin, CUevent end) {
  float milliseconds = 0;
  Must(Cuda().EventElapsedTime(&milliseconds, begin, end), "cuEventElapsedTime");
  return milliseconds;
}

bool Done(CUevent event) {
  const CUresult result = Cuda().EventQuery(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  Must(result, "work on the device");
  return true;
}

}  // namespace harmony::bench
