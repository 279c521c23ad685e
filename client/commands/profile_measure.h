#pragma once

// Runs the measuring processes of `harmony profile`: the programs that train, with the memory and
// the environment that the launcher gives them, each asked for its part of the profile.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands/common.h"
#include "client/launcher/cluster.h"
#include "common/job/job_spec.h"
#include "common/profile/profile.h"
#include "common/profile/profile_estimate.h"

namespace harmony::client {

struct MeasureOptions {
  std::string bin_dir;
  Cluster cluster;
  job::JobSpec job;
  model::ModelSpec model;
  std::string config_json;  // of the model
  bool times_follow_flops = true;
  bool quick = false;
  std::function<void(const std::string&)> say;  // what is being done, a line each
};

// From the job file, its model and its data, all checked; the rest is the caller's.
absl::StatusOr<MeasureOptions> MeasureOptionsOf(const GlobalOptions& global, const JobOptions& job,
                                                const v1::SubmitRequest& request);

// What would measure. A fraction of a second.
absl::StatusOr<profile::ProfileVersions> AskVersions(const MeasureOptions& options);

// ResourceExhausted: a layer fits its device at no size. Cancelled: a signal came. Call from the
// main thread, before any other thread exists. All processes are gone when it returns.
absl::StatusOr<profile::Profile> MeasureProfile(const MeasureOptions& options,
                                                const profile::ProfileVersions& versions);

// As EstimateProfile wants them. REQUIRES: options.cluster has the work's devices.
absl::StatusOr<profile::Profile> MeasureSpeeds(const MeasureOptions& options,
                                               const profile::ProfileVersions& versions,
                                               const profile::CalibrationWork& work);

}  // namespace harmony::client
