#pragma once

// Everything that is checked of a job before it is queued: keys, model, data, weights, plan,
// memory. Reads files; runs on the thread of the call that brought the job, never on the loop.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/weight_map.h"
#include "common/plan/machine.h"
#include "common/plan/planned_job.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/jobs/host_limits.h"
#include "coordinator/service/jobs/output_dir.h"

namespace harmony::service {

struct JobRequest {
  std::string yaml;
  std::string path;  // of the job file
  std::vector<std::string> overrides;
  std::string working_directory;
  bool overwrite = false;
  std::string profile;  // text; empty: none
  std::string profile_path;
  std::string plan;  // text of a plan to run; empty: one is searched for
  std::string plan_path;
  bool absolute_paths_only = false;  // it comes from another machine
  bool explain = false;              // the plan's text is to have all there is to say
};

struct AdmittedJob : plan::PlannedJob {
  std::string plan_text, plan_json;
  std::string profile;  // what the plan was made by; empty: an estimate
  std::string result_keys;
  io::DataFingerprint data;
  io::WeightMap weights;  // names and types of final/
  OutputDirState output;
  std::vector<std::string> notes;  // for the log
};

// Keys and model alone; nothing else of the job is filled in. Errors carry the whole message.
absl::StatusOr<AdmittedJob> ReadJob(const JobRequest& request);

// What plans of the job are compared by, and what is to be said of it: the request's profile.
// Without one nothing is set, and the planner estimates by the devices' speeds. The job's model
// must outlive the costs. InvalidArgument names what is wrong with the profile.
absl::Status SetCosts(const JobRequest& request, const AdmittedJob& job,
                      const plan::MachineSpec& machine, planner::PlannerOptions* options);

// Model, data and plan; the output directory is not looked at. Errors carry the whole message.
absl::StatusOr<AdmittedJob> PlanJob(const JobRequest& request, const plan::MachineSpec& machine,
                                    const HostLimits& limits);

// All of it. `output.finished`: there is nothing left to do, and the plan is not made.
absl::StatusOr<AdmittedJob> AdmitJob(const JobRequest& request, const plan::MachineSpec& machine,
                                     const HostLimits& limits);

}  // namespace harmony::service
