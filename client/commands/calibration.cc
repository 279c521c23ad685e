#include "client/commands/calibration.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/profile_cache.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/profile/profile_estimate.h"
#include "common/profile/profile_json.h"

namespace harmony::client {
namespace {

// A job is worth a calibration when it takes this long at a guess.
constexpr double kWorthIt = 30;
constexpr double kGuessedFlops = 40e9;
constexpr char kPrefix[] = "speeds-";  // of cached ones

// All devices are emulated, and one of them leaves a speed open.
bool LeavesSpeedsOpen(const std::vector<plan::DeviceSpec>& devices) {
  bool open = false;
  for (const plan::DeviceSpec& device : devices) {
    if (device.kind != plan::DeviceKind::kSim) return false;
    open |= !plan::HasSpeeds(device) || (devices.size() > 1 && device.p2p.value == 0);
  }
  return open;
}

// Forward, recompute and backward of every token.
bool IsWorthIt(const model::ModelSpec& model, const job::JobSpec& job) {
  const double tokens = static_cast<double>(job.max_steps) *
                        static_cast<double>(job.global_batch_size * job.sequence_length);
  return 8 * tokens * static_cast<double>(model.parameter_count()) / kGuessedFlops > kWorthIt;
}

std::string FingerprintOf(const MeasureOptions& measure, const profile::CalibrationWork& work,
                          const profile::ProfileVersions& versions) {
  return absl::StrCat(profile::kProfileSchema, " calibration\n", profile::ModelCostText(work.model),
                      "samples ", work.job.global_batch_size, " devices ", work.devices.size(), " ",
                      profile::OptimizerName(work.job), " threads ", work.job.compute_threads, "\n",
                      MeasurersText(measure.bin_dir, versions));
}

// Cached speeds must be of this work: a file of another one would be misread.
bool IsOf(const profile::Profile& speeds, const profile::CalibrationWork& work) {
  const profile::DeviceProfile& device = speeds.devices.front();
  return speeds.devices.size() == work.devices.size() &&
         speeds.model_fingerprint == profile::ModelFingerprint(work.model) &&
         device.layers.front().sizes.front().samples == work.job.global_batch_size;
}

absl::StatusOr<std::optional<profile::Profile>> SpeedsOf(const MeasureOptions& measure,
                                                         const profile::CalibrationWork& work,
                                                         bool may_measure) {
  const SignalMask as_before;
  HARMONY_ASSIGN_OR_RETURN(const profile::ProfileVersions versions, AskVersions(measure));
  const std::string path = CachePath(kPrefix, FingerprintOf(measure, work, versions));
  std::optional<profile::Profile> cached;
  if (!path.empty()) cached = ReadCached(path, measure.say);
  if (cached && IsOf(*cached, work)) return cached;
  if (!may_measure) return std::nullopt;
  const Nanos start = MonotonicClock().Now();
  HARMONY_ASSIGN_OR_RETURN(profile::Profile speeds, MeasureSpeeds(measure, work));
  speeds.versions = versions;
  measure.say(absl::StrFormat("measured how fast the devices are, in %.1f s%s",
                              (MonotonicClock().Now() - start).seconds(),
                              path.empty() ? "" : " (kept for the next time)"));
  if (!path.empty()) WriteCached(path, speeds, measure.say);
  return speeds;
}

}  // namespace

absl::StatusOr<std::string> CalibratedProfile(const GlobalOptions& global, const JobOptions& job,
                                              const v1::SubmitRequest& request,
                                              const Cluster& cluster, CalibrateWhen when,
                                              const std::function<void(const std::string&)>& say) {
  if (!job.calibrate || !request.profile().empty() || !LeavesSpeedsOpen(cluster.specs)) return "";
  absl::StatusOr<MeasureOptions> measure = MeasureOptionsOf(global, job, request);
  if (!measure.ok()) return "";
  const bool may_measure =
      when == CalibrateWhen::kAlways ||
      (when == CalibrateWhen::kIfWorthIt && IsWorthIt(measure->model, measure->job));
  if (!may_measure && !AnythingCached(kPrefix)) return "";
  measure->say = say;
  const model::ModelSpec model = measure->model;
  HARMONY_ASSIGN_OR_RETURN(
      const profile::CalibrationWork work,
      profile::CalibrationWorkOf(model, measure->config_json, measure->job, cluster.specs.size()));
  std::vector<std::string> devices;
  for (const plan::DeviceSpec& device : work.devices) devices.push_back(ToString(device));
  measure->cluster.devices = absl::StrJoin(devices, ";");
  measure->cluster.specs = work.devices;
  measure->quick = true;
  absl::StatusOr<std::optional<profile::Profile>> speeds = SpeedsOf(*measure, work, may_measure);
  if (absl::IsCancelled(speeds.status())) return speeds.status();
  if (!speeds.ok()) {
    say(absl::StrCat("planning by guesses, since nothing could be measured: ",
                     speeds.status().message()));
    return "";
  }
  if (!speeds->has_value()) return "";
  return profile::ProfileToJson(
      profile::EstimateProfile(work, **speeds, model, measure->job, cluster.specs));
}

}  // namespace harmony::client
