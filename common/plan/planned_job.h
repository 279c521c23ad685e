#pragma once

// A job with what follows from it. What a process or a stage adds stands in a type of its own that
// begins with this one: AdmittedJob, RunSetup and ReplanRequest in the coordinator, AttachedJob and
// HostJob in the others; JobRecord is the same as text, for the coordinator's store. PURE.

#include <string>

#include "common/job/job_spec.h"
#include "common/model/model_spec.h"
#include "common/plan/plan.h"

namespace harmony::plan {

struct PlannedJob {
  job::JobSpec spec;        // as parsed: what `auto` was resolved to is in the plan
  std::string config_json;  // the model's configuration, verbatim
  model::ModelSpec model;   // of that configuration and the job's sequence length
  Plan plan;                // in force
};

}  // namespace harmony::plan
