#pragma once

// What a run is given: the planned job, where it starts from, and what it is expected to take. Made
// by prepare_run.h; a value.

#include <memory>
#include <optional>
#include <string>

#include "common/plan/planned_job.h"
#include "common/profile/profile.h"
#include "coordinator/service/jobs/output_dir.h"
#include "coordinator/service/replan/forecast.h"
#include "coordinator/service/replan/replan.h"

namespace harmony::service {

struct RunSetup : plan::PlannedJob {
  std::string id;
  std::string plan_bytes;                           // as JobSetup sends it
  std::shared_ptr<const profile::Profile> profile;  // what it was planned by; null: an estimate
  ReplanState replan;                               // what was found since
  StartPoint start;
  bool continues = false;  // the segment holds the job already: what it has done stays done
  std::optional<Forecast> forecast;  // where the machine's speeds are known or measured
};

}  // namespace harmony::service
