#pragma once

// What `harmony plan` asks when no coordinator answers: a job file, devices and what else the
// command line of a planning program says. Reads files.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/service/jobs/admission.h"

namespace CLI {
class App;
}

namespace harmony::service {

struct PlanOptions {
  std::string devices, host_memory;  // host_memory empty: most of what is available
  std::string job, profile, plan;    // paths; profile and plan may be empty
  std::vector<std::string> overrides;
  bool explain = false, json = false;
};

// --job, --set, --profile, --plan; `purpose` ends each one's description.
void AddPlanOptions(CLI::App& app, const std::string& purpose, PlanOptions* options);

struct PlanRequest {
  JobRequest job;
  plan::MachineSpec machine;
  HostLimits limits;
};
// NotFound and InvalidArgument name the file or the option.
absl::StatusOr<PlanRequest> ReadPlanRequest(const PlanOptions& options);

// Devices and the size of the host's segment. InvalidArgument names what is wrong.
absl::StatusOr<plan::MachineSpec> ResolveMachine(const std::string& devices,
                                                 const std::string& host_memory);

}  // namespace harmony::service
