#include "common/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

absl::Status NoDriver(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "no CUDA driver: ", why,
      ". Install NVIDIA's driver (nvidia-smi then lists the GPUs), or use sim devices"));
}

// Under WSL the driver is Windows', without the exported memory that has to outlive processes.
bool UnderWsl() { return access("/dev/dxg", F_OK) == 0; }

template <typename Function>
absl::Status Find(decltype(&::cuGetProcAddress) find, const char* name, Function& function) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (find(name, &address, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS ||
      address == nullptr) {
    return NoDriver(absl::StrCat(kLibrary, " lacks ", name));
  }
  function = reinterpret_cast<Function>(address);
  return absl::OkStatus();
}

absl::Status FindAll(decltype(&::cuGetProcAddress) find, Driver& driver) {
#define HARMONY_CUDA_FIND(name) HARMONY_RETURN_IF_ERROR(Find(find, "cu" #name, driver.name));
  HARMONY_CUDA_FUNCTIONS(HARMONY_CUDA_FIND)
#undef HARMONY_CUDA_FIND
  return absl::OkStatus();
}

absl::Status CheckVersion(const Driver& driver) {
  int version = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DriverGetVersion(&version), "asking its version"));
  if (version >= kLeastDriverVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the CUDA driver is for CUDA ", FormatDriverVersion(version), ", Harmony needs one for ",
      FormatDriverVersion(kLeastDriverVersion), " or later: update NVIDIA's driver"));
}

absl::Status Open(Driver& driver) {
  if (UnderWsl()) {
    return NoDriver("WSL's lacks what Harmony needs; run on Linux itself");
  }
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NoDriver(dlerror());
  const auto find =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return NoDriver(absl::StrCat(kLibrary, " is older than CUDA 12"));
  // The version comes first, by its plain name: an old driver has no function of a later version
  // for anybody.
  driver.DriverGetVersion =
      reinterpret_cast<decltype(driver.DriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  if (driver.DriverGetVersion == nullptr) return NoDriver(absl::StrCat(kLibrary, " is none"));
  HARMONY_RETURN_IF_ERROR(CheckVersion(driver));
  HARMONY_RETURN_IF_ERROR(FindAll(find, driver));
  const CUresult ready = driver.Init(0);
  if (ready == CUDA_ERROR_NO_DEVICE) {
    return absl::FailedPreconditionError(
        "the CUDA driver finds no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES, or use sim "
        "devices");
  }
  return driver.Check(ready, "starting the CUDA driver");
}

}  // namespace

absl::Status Driver::Check(CUresult result, absl::string_view what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName == nullptr || GetErrorName(result, &name) != CUDA_SUCCESS) name = "error";
  if (GetErrorString == nullptr || GetErrorString(result, &text) != CUDA_SUCCESS) text = "";
  const std::string message =
      absl::StrCat(what, ": ", text, " (", name, ", ", static_cast<int>(result), ")");
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  if (IsSticky(result)) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

absl::StatusOr<const Driver*> LoadDriver() {
  struct Loaded {
    Driver driver;
    absl::Status status = Open(driver);
  };
  static const Loaded* const loaded = new Loaded;
  HARMONY_RETURN_IF_ERROR(loaded->status);
  return &loaded->driver;
}

bool IsSticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

std::string FormatDriverVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace harmony::cuda
