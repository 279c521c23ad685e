#pragma once

#include <cstdint>
#include <string>

#include "common/model/model_config.h"
#include "common/model/model_spec.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"

namespace harmony {

// A job as the processes that carry it out get it (JobSetup), decoded and checked.
struct AttachedJob {
  std::string id;
  JobSpec spec;
  ModelSpec model;
  ModelConfig config;  // for the layers of the built-in families
  Plan plan;
  std::string job_json, model_config_json;  // what spec and model were read from
  std::string resume_checkpoint;            // absolute directory; empty: start from init
  int64_t first_step = 0;
};

}  // namespace harmony
