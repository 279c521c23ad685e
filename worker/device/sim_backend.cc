#include "worker/device/sim_backend.h"

#include <utility>

#include "worker/device/cpu_device.h"
#include "worker/device/cpu_identity.h"

namespace harmony::worker {
namespace {

class SimBackend : public DeviceBackend {
 public:
  explicit SimBackend(ipc::MappedRegion region) : region_(std::move(region)) {}

  Bytes memory() const override { return region_.size(); }
  std::string ComputesOn() const override { return CpuComputesOn(); }
  absl::StatusOr<std::unique_ptr<ComputeDevice>> Open(Bytes, Bytes workspace,
                                                      int compute_threads) override {
    return CpuDevice::Create(
        {.resident = region_.data(), .workspace = workspace, .compute_threads = compute_threads});
  }

 private:
  const ipc::MappedRegion region_;
};

}  // namespace

std::unique_ptr<DeviceBackend> MakeSimBackend(ipc::MappedRegion region) {
  return std::make_unique<SimBackend>(std::move(region));
}

}  // namespace harmony::worker
