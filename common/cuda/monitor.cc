#include "common/cuda/monitor.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::cuda {
namespace {

constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// The part of nvml.h that is used here, which no package that Harmony needs has: functions, numbers
// and the structure are part of the library's binary interface, and do not change.
namespace nvml {

using Device = struct DeviceOfLibrary*;
constexpr int kSuccess = 0;
constexpr unsigned kTemperatureOfGpu = 0;
constexpr unsigned kClockOfSm = 1, kClockOfMemory = 2;
constexpr unsigned kSentByGpu = 0, kReceivedByGpu = 1;
struct Memory {
  unsigned long long total, free, used;
};

using Init = int (*)();
using ByBus = int (*)(const char* bus, Device* device);
using AskOne = int (*)(Device device, unsigned which, unsigned* value);
using AskMemory = int (*)(Device device, Memory* memory);

}  // namespace nvml

struct NvmlLibrary {
  nvml::Init init = nullptr;
  nvml::ByBus by_bus = nullptr;
  // Those that an older library lacks are null.
  nvml::AskOne temperature = nullptr, clock = nullptr, throughput = nullptr;
  nvml::AskMemory memory = nullptr;
};

template <typename Function>
void FindIn(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

absl::StatusOr<NvmlLibrary> OpenLibrary() {
  void* const opened = dlopen(kNvmlLibrary, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return absl::NotFoundError(dlerror());
  NvmlLibrary library;
  FindIn(opened, "nvmlInit_v2", library.init);
  FindIn(opened, "nvmlDeviceGetHandleByPciBusId_v2", library.by_bus);
  FindIn(opened, "nvmlDeviceGetTemperature", library.temperature);
  FindIn(opened, "nvmlDeviceGetClockInfo", library.clock);
  FindIn(opened, "nvmlDeviceGetPcieThroughput", library.throughput);
  FindIn(opened, "nvmlDeviceGetMemoryInfo", library.memory);
  if (library.init == nullptr || library.by_bus == nullptr) {
    return absl::NotFoundError(absl::StrCat(kNvmlLibrary, " is too old"));
  }
  const int started = library.init();
  if (started == nvml::kSuccess) return library;
  return absl::NotFoundError(absl::StrCat(kNvmlLibrary, " does not start: error ", started));
}

// Opened once, and never closed.
absl::StatusOr<const NvmlLibrary*> TheLibrary() {
  static const auto* const library = new absl::StatusOr<NvmlLibrary>(OpenLibrary());
  HARMONY_RETURN_IF_ERROR(library->status());
  return &**library;
}

class NvmlMonitor : public Monitor {
 public:
  NvmlMonitor(const NvmlLibrary* library, nvml::Device device)
      : library_(library), device_(device) {}

  Readings Read() const override {
    Readings readings;
    readings.temperature_celsius = Ask(library_->temperature, nvml::kTemperatureOfGpu);
    readings.sm_clock_mhz = Ask(library_->clock, nvml::kClockOfSm);
    readings.memory_clock_mhz = Ask(library_->clock, nvml::kClockOfMemory);
    readings.pcie_in = AskRate(nvml::kReceivedByGpu);
    readings.pcie_out = AskRate(nvml::kSentByGpu);
    nvml::Memory memory = {};
    if (library_->memory != nullptr && library_->memory(device_, &memory) == nvml::kSuccess) {
      readings.memory = Bytes(static_cast<int64_t>(memory.total));
      readings.memory_used = Bytes(static_cast<int64_t>(memory.used));
    }
    return readings;
  }

 private:
  std::optional<int> Ask(nvml::AskOne ask, unsigned which) const {
    unsigned value = 0;
    if (ask == nullptr || ask(device_, which, &value) != nvml::kSuccess) return std::nullopt;
    return static_cast<int>(value);
  }

  // The library counts in thousands of bytes a second.
  std::optional<BytesPerSecond> AskRate(unsigned direction) const {
    const std::optional<int> thousands = Ask(library_->throughput, direction);
    if (!thousands) return std::nullopt;
    return BytesPerSecond{1e3 * *thousands};
  }

  const NvmlLibrary* const library_;
  const nvml::Device device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Monitor>> Monitor::Open(const Driver& driver, int ordinal) {
  HARMONY_ASSIGN_OR_RETURN(const NvmlLibrary* const library, TheLibrary());
  CUdevice gpu = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&gpu, ordinal), "asking for a GPU"));
  char bus[32] = "";
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.DeviceGetPCIBusId(bus, sizeof(bus), gpu), "asking a GPU's place"));
  nvml::Device device = nullptr;
  if (const int found = library->by_bus(bus, &device); found != nvml::kSuccess) {
    return absl::NotFoundError(
        absl::StrCat(kNvmlLibrary, " does not know the GPU at ", bus, ": error ", found));
  }
  return std::make_unique<NvmlMonitor>(library, device);
}

}  // namespace harmony::cuda
