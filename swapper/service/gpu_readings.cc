#include "swapper/service/gpu_readings.h"

#include <spdlog/spdlog.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#ifdef HARMONY_CUDA
#include "common/cuda/driver.h"
#include "common/cuda/monitor.h"
#endif

namespace harmony::swapper {

#ifdef HARMONY_CUDA
namespace {

v1::GpuReadings ToWire(const cuda::Readings& readings) {
  v1::GpuReadings wire;
  if (readings.temperature_celsius) wire.set_temperature_celsius(*readings.temperature_celsius);
  if (readings.sm_clock_mhz) wire.set_sm_clock_mhz(*readings.sm_clock_mhz);
  if (readings.memory_clock_mhz) wire.set_memory_clock_mhz(*readings.memory_clock_mhz);
  if (readings.memory_used) wire.set_memory_used_bytes(readings.memory_used->count());
  if (readings.memory) wire.set_memory_bytes(readings.memory->count());
  const auto rate = [](BytesPerSecond rate) { return static_cast<int64_t>(rate.value); };
  if (readings.pcie_in) wire.set_pcie_in_bytes_per_second(rate(*readings.pcie_in));
  if (readings.pcie_out) wire.set_pcie_out_bytes_per_second(rate(*readings.pcie_out));
  return wire;
}

// Several devices may be one GPU, which is asked once.
struct Monitors {
  std::vector<int> ordinals;  // by device
  std::map<int, std::unique_ptr<cuda::Monitor>> by_ordinal;
};

absl::StatusOr<Monitors> OpenAll(const runtime::ProgramContext& context) {
  HARMONY_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::LoadDriver());
  Monitors monitors;
  for (const plan::DeviceSpec& device : context.devices) {
    monitors.ordinals.push_back(device.cuda_ordinal);
    std::unique_ptr<cuda::Monitor>& monitor = monitors.by_ordinal[device.cuda_ordinal];
    if (monitor != nullptr) continue;
    HARMONY_ASSIGN_OR_RETURN(monitor, cuda::Monitor::Open(*driver, device.cuda_ordinal));
  }
  return monitors;
}

std::vector<v1::GpuReadings> Read(const Monitors& monitors) {
  std::map<int, v1::GpuReadings> read;
  for (const auto& [ordinal, monitor] : monitors.by_ordinal)
    read[ordinal] = ToWire(monitor->Read());
  std::vector<v1::GpuReadings> by_device;
  for (const int ordinal : monitors.ordinals) by_device.push_back(read.at(ordinal));
  return by_device;
}

}  // namespace
#endif

GpuReader OpenGpuReader([[maybe_unused]] const runtime::ProgramContext& context) {
#ifdef HARMONY_CUDA
  if (context.devices.front().kind == plan::DeviceKind::kCuda) {
    absl::StatusOr<Monitors> opened = OpenAll(context);
    if (opened.ok()) {
      return [monitors = std::make_shared<const Monitors>(*std::move(opened))] {
        return Read(*monitors);
      };
    }
    spdlog::warn("temperatures, clocks and traffic of GPUs are not shown: {}",
                 opened.status().ToString());
  }
#endif
  return [] { return std::vector<v1::GpuReadings>(); };
}

}  // namespace harmony::swapper
