#include "swapper/copies/copiers.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "swapper/transfer/sim_copier.h"
#ifdef HARMONY_CUDA
#include "swapper/transfer/cuda_copier.h"
#endif

namespace harmony::swapper {
namespace {

absl::StatusOr<std::unique_ptr<Copier>> OpenSim(const runtime::ProgramContext& context,
                                                const Copies& copies, std::byte* arena) {
  std::vector<ipc::MappedRegion> regions;
  for (const plan::DeviceSpec& device : context.devices) {
    HARMONY_ASSIGN_OR_RETURN(regions.emplace_back(), context.MapDevice(device.ordinal));
  }
  return std::make_unique<SimCopier>(arena, context.devices, std::move(regions), copies.devices);
}

#ifdef HARMONY_CUDA
absl::StatusOr<std::unique_ptr<Copier>> OpenCuda(const runtime::ProgramContext& context,
                                                 const Copies& copies, std::byte* arena) {
  HARMONY_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::LoadDriver());
  std::vector<int> fds;
  for (const plan::DeviceSpec& device : context.devices) {
    HARMONY_ASSIGN_OR_RETURN(fds.emplace_back(), context.DeviceDescriptor(device.ordinal));
  }
  return CudaCopier::Create(*driver, arena, context.devices, fds,
                            {.of_devices = copies.devices,
                             .in_compute_context = copies.in_compute_context,
                             .on_pinned = [pulse = context.pulse.get()] {
                               if (pulse != nullptr) pulse->Progress();
                             }});
}
#else
absl::StatusOr<std::unique_ptr<Copier>> OpenCuda(const runtime::ProgramContext&, const Copies&,
                                                 std::byte*) {
  return absl::FailedPreconditionError("this build is without CUDA: use sim devices");
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Copier>> OpenCopier(const runtime::ProgramContext& context,
                                                   const Copies& copies) {
  std::byte* const arena = context.segment.Arena(Bytes(0));
  return context.devices.front().kind == plan::DeviceKind::kCuda ? OpenCuda(context, copies, arena)
                                                                 : OpenSim(context, copies, arena);
}

}  // namespace harmony::swapper
