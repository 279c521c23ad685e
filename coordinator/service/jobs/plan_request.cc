#include "coordinator/service/jobs/plan_request.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/ipc/host_memory.h"
#include "common/ipc/segment.h"

namespace harmony::service {
namespace {

constexpr int64_t kMaxJobFileBytes = 1 << 20;

}  // namespace

void AddPlanOptions(CLI::App& app, const std::string& purpose, PlanOptions* options) {
  app.add_option("--job", options->job, absl::StrCat("job file", purpose));
  app.add_option("--set", options->overrides, absl::StrCat("key=value", purpose));
  app.add_option("--profile", options->profile, absl::StrCat("measured times", purpose));
  app.add_option("--plan", options->plan, absl::StrCat("plan file", purpose));
}

absl::StatusOr<plan::MachineSpec> ResolveMachine(const std::string& devices,
                                                 const std::string& host_memory) {
  plan::MachineSpec machine;
  HARMONY_ASSIGN_OR_RETURN(machine.devices, plan::ParseDevices(devices));
  if (host_memory.empty()) {
    machine.host_memory =
        Bytes(ipc::AvailableHostMemory().count() / 5 * 4);  // 80%, as launchers do
  } else {
    HARMONY_ASSIGN_OR_RETURN(machine.host_memory, ParseBytes(host_memory));
  }
  machine.segment_for = ipc::Segment::SizeFor;
  return machine;
}

absl::StatusOr<PlanRequest> ReadPlanRequest(const PlanOptions& options) {
  PlanRequest request;
  HARMONY_ASSIGN_OR_RETURN(request.machine, ResolveMachine(options.devices, options.host_memory));
  JobRequest& job = request.job;
  HARMONY_ASSIGN_OR_RETURN(job.yaml, io::ReadWholeFile(options.job, kMaxJobFileBytes));
  job.path = std::filesystem::absolute(options.job).string();
  job.overrides = options.overrides;
  // Where the current folder was removed, relative paths begin at the job file's.
  std::error_code removed;
  job.working_directory = std::filesystem::current_path(removed).string();
  if (!options.profile.empty()) {
    HARMONY_ASSIGN_OR_RETURN(job.profile,
                             io::ReadWholeFile(options.profile, limits::kMostFileBytes));
    job.profile_path = options.profile;
  }
  if (!options.plan.empty()) {
    HARMONY_ASSIGN_OR_RETURN(job.plan, io::ReadWholeFile(options.plan, limits::kMostFileBytes));
    job.plan_path = options.plan;
  }
  job.explain = options.explain;
  const ipc::Segment::Capacity capacity = ipc::Segment::CapacityOf(request.machine.host_memory);
  request.limits.arena = capacity.arena;
  request.limits.records = capacity.records;
  request.limits.cursors = capacity.cursors;
  request.limits.available = options.host_memory.empty() ? ipc::AvailableHostMemory() : Bytes();
  return request;
}

}  // namespace harmony::service
