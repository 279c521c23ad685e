#pragma once

#include <cstdint>
#include <string>

#include "common/model/architecture.h"
#include "common/plan/planned_job.h"

namespace harmony::runtime {

// A job as the processes that carry it out get it (JobSetup), decoded and checked.
struct AttachedJob : plan::PlannedJob {
  std::string id;
  model::Architecture architecture;  // for the layers
  std::string job_json;              // what the specification was read from: kept in checkpoints
  std::string resume_checkpoint;     // absolute directory; empty: start from init
  int64_t first_step = 0;            // the version that kInitialize commits
};

}  // namespace harmony::runtime
