#pragma once

// A job with what follows from it. What a process or a stage adds stands in a type of its own that
// begins with this one: AdmittedJob, RunSetup and ReplanRequest in the coordinator, AttachedJob and
// HostJob in the others; JobRecord is the same as text, for the coordinator's store. PURE.

#include <string>

#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/model/architecture.h"
#include "common/model/model_spec.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace harmony::plan {

struct PlannedJob {
  job::JobSpec spec;        // as parsed: what `auto` was resolved to is in the plan
  std::string config_json;  // the model's configuration, verbatim
  model::ModelSpec model;   // of that configuration and the job's sequence length
  Plan plan;                // in force
};

// job::ModelOf as plans for the machine take it: who plans, or says what a plan needs, has the
// model from here. Processes, which compute what the commands say, need no machine.
absl::StatusOr<model::ModelSpec> ModelOn(const MachineSpec& machine,
                                         const model::Architecture& architecture,
                                         const job::JobSpec& job, DType gradient_dtype);

}  // namespace harmony::plan
