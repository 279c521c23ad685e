#include "common/cuda/devices.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/cuda/context.h"

namespace harmony::cuda {
namespace {

absl::StatusOr<int> Attribute(const Driver& driver, CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGetAttribute(&value, attribute, device),
                                       "asking what a GPU can do"));
  return value;
}

std::string FormatUuid(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// Of the device of the current context.
absl::StatusOr<Bytes> FreeMemory(const Driver& driver) {
  size_t free = 0, total = 0;
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.MemGetInfo(&free, &total), "asking for a GPU's free memory"));
  return Bytes(static_cast<int64_t>(free));
}

absl::Status MeasureMemory(const Driver& driver, plan::Gpu& gpu) {
  HARMONY_ASSIGN_OR_RETURN(const Context first, Context::Create(driver, gpu.ordinal));
  HARMONY_ASSIGN_OR_RETURN(const Bytes with_one, FreeMemory(driver));
  HARMONY_ASSIGN_OR_RETURN(const Context second, Context::Create(driver, gpu.ordinal));
  HARMONY_ASSIGN_OR_RETURN(const Bytes with_two, FreeMemory(driver));
  // Another process may give memory back in between.
  gpu.context = std::max(with_one - with_two, Bytes());
  gpu.free = with_one + gpu.context;
  return absl::OkStatus();
}

// The least that kernels are built for (worker/cuda/CMakeLists.txt), and that computes in bfloat16.
constexpr int kLeastCapability = 80;

absl::Status CheckUse(const Driver& driver, CUdevice device, int capability) {
  if (capability < kLeastCapability) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "its compute capability is %d.%d: it lacks the type bfloat16 and what else the kernels "
        "take, which need 8.0 (Ampere) or later",
        capability / 10, capability % 10));
  }
  HARMONY_ASSIGN_OR_RETURN(const int mode,
                           Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
  if (mode == CU_COMPUTEMODE_DEFAULT) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "its compute mode does not let several processes use it (nvidia-smi -c DEFAULT changes "
      "that)");
}

absl::Status Describe(const Driver& driver, plan::Gpu& gpu) {
  CUdevice device = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&device, gpu.ordinal), "opening a GPU"));
  char name[128] = "", bus[32] = "";
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.DeviceGetName(name, sizeof(name), device), "asking a GPU's name"));
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.DeviceGetPCIBusId(bus, sizeof(bus), device), "asking a GPU's place"));
  CUuuid uuid = {};
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGetUuid(&uuid, device), "asking a GPU's id"));
  size_t memory = 0;
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.DeviceTotalMem(&memory, device), "asking for a GPU's memory"));
  gpu.name = name;
  gpu.bus = bus;
  gpu.uuid = FormatUuid(uuid);
  gpu.memory = Bytes(static_cast<int64_t>(memory));
  HARMONY_ASSIGN_OR_RETURN(gpu.multiprocessors,
                           Attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  HARMONY_ASSIGN_OR_RETURN(const int major,
                           Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  HARMONY_ASSIGN_OR_RETURN(const int minor,
                           Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  gpu.capability = 10 * major + minor;
  HARMONY_RETURN_IF_ERROR(CheckUse(driver, device, gpu.capability));
  return MeasureMemory(driver, gpu);
}

}  // namespace

absl::StatusOr<std::vector<plan::Gpu>> ListGpus(const Driver& driver) {
  int count = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGetCount(&count), "counting GPUs"));
  std::vector<plan::Gpu> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    plan::Gpu& gpu = gpus.emplace_back();
    gpu.ordinal = ordinal;
    gpu.problem = std::string(Describe(driver, gpu).message());  // none of OK
  }
  return gpus;
}

}  // namespace harmony::cuda
