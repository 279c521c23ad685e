#pragma once

// What plans go by where the job's layers were not measured: FLOPs and bytes at speeds that were
// measured in a moment, and are cached (docs/profile.md).

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands/common.h"
#include "client/launcher/cluster.h"

namespace harmony::client {

// What messages call such a profile.
inline constexpr char kCalibration[] = "calibration";

enum class CalibrateWhen {
  kAlways,     // measures where nothing is cached: some seconds
  kIfWorthIt,  // only for a job that takes a good deal longer than that
  kNever,      // uses what is cached
};

// The text of such a profile. Empty: the job brings a profile, its devices have speeds of their
// own, it was not wanted, or could not be had (`say` says why, if it is not the job's own fault:
// then whoever plans it says more). Cancelled: a signal came. Call from the main thread; other
// threads must have SignalsThatStop() blocked. Signals are as before when it returns.
absl::StatusOr<std::string> CalibratedProfile(const GlobalOptions& global, const JobOptions& job,
                                              const v1::SubmitRequest& request,
                                              const Cluster& cluster, CalibrateWhen when,
                                              const std::function<void(const std::string&)>& say);

}  // namespace harmony::client
