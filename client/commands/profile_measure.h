#pragma once

// Runs the measuring processes of `harmony profile`: the programs that train, with the memory and
// the environment that the launcher gives them, each asked for its part of the profile.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/launcher/cluster.h"
#include "common/plan/job_spec.h"
#include "common/plan/profile.h"

namespace harmony {

struct MeasureOptions {
  std::string bin_dir;
  Cluster cluster;
  JobSpec job;
  ModelSpec model;
  std::string config_json;  // of the model
  bool quick = false;
  std::function<void(const std::string&)> say;  // what is being done, a line each
};

// What would measure. A fraction of a second.
absl::StatusOr<ProfileVersions> AskVersions(const MeasureOptions& options);

// ResourceExhausted: a layer fits its device at no size. Cancelled: a signal came. Call from the
// main thread, before any other thread exists. All processes are gone when it returns.
absl::StatusOr<Profile> MeasureProfile(const MeasureOptions& options);

}  // namespace harmony
