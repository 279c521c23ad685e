// Who carries out which lane.

#include "absl/strings/str_cat.h"
#include "common/command/lane_kinds.h"
#include "coordinator/runner/job_runner.h"

namespace harmony::runner {

std::string DebugString(const ProcessId& process) {
  switch (process.role) {
    case Role::kSwapper:
      return "swapper";
    case Role::kHostWorker:
      return "host worker";
    case Role::kWorker:
      break;
  }
  return absl::StrCat("worker ", process.device);
}

ProcessId OwnerOf(const command::Lane& lane, const std::set<int>& worker_copies) {
  switch (command::TraitsOf(lane.kind).owner) {
    case command::LaneOwner::kWorker:
      return {Role::kWorker, lane.device};
    case command::LaneOwner::kSwapper:
      if (worker_copies.contains(lane.device)) return {Role::kWorker, lane.device};
      return {Role::kSwapper, 0};
    case command::LaneOwner::kHostWorker:
      return {Role::kHostWorker, 0};
  }
  return {};
}

}  // namespace harmony::runner
