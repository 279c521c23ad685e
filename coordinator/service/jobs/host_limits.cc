#include "coordinator/service/jobs/host_limits.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/command/objects.h"
#include "common/ipc/segment.h"
#include "common/plan/arena_layout.h"
#include "coordinator/planner/host_memory_error.h"

namespace harmony::service {
namespace {

absl::Status TooLittle(absl::string_view what, Bytes need, Bytes have, absl::string_view advice) {
  return planner::HostMemoryError(absl::InvalidArgumentError(absl::StrCat(
      what, ": the job needs ", FormatBytesExact(need), ", there are ", FormatBytesExact(have),
      ": ", FormatBytesExact(need - have), " are missing. ", advice)));
}

}  // namespace

Bytes AvailableToArena(const plan::MachineSpec& machine, const HostLimits& limits) {
  Bytes left = limits.available;
  for (const plan::DeviceSpec& device : machine.devices) {
    if (device.kind == plan::DeviceKind::kSim && !limits.devices_touched) left -= device.memory;
  }
  return left;
}

absl::Status CheckHost(const model::ModelSpec& model, const plan::Plan& plan,
                       const plan::MachineSpec& machine, const HostLimits& limits) {
  const Bytes arena = plan::ArenaLayout(model, plan).end();
  if (arena > limits.arena) {
    return TooLittle("host memory of the arena", arena, limits.arena,
                     "Give more (--host-memory), or train a smaller model or batch");
  }
  const Bytes left = AvailableToArena(machine, limits);
  if (limits.available.count() > 0 && arena > left) {
    return TooLittle("memory of this machine (arena and sim devices)",
                     arena + (limits.available - left), limits.available,
                     "Free some, or train a smaller model or batch");
  }
  const command::ObjectTableLayout table(model, plan.num_microbatches, plan.replicas);
  if (limits.records > 0 && table.size() > limits.records) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has ", table.size(), " objects; the object table of the segment has room for ",
        limits.records, ". Use a larger micro_batch_size"));
  }
  if (limits.cursors > 0 && ipc::CursorCount(model) > limits.cursors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job needs ", ipc::CursorCount(model), " update cursors; the segment has room for ",
        limits.cursors, ". Give more host memory (--host-memory)"));
  }
  return absl::OkStatus();
}

}  // namespace harmony::service
