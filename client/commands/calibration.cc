#include "client/commands/calibration.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/profile_cache.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"
#include "common/profile/plausible.h"
#include "common/profile/profile_estimate.h"
#include "common/profile/profile_json.h"

namespace harmony::client {
namespace {

// A job is worth a calibration when it takes this long at a guess: of a CPU that emulates a device,
// or of a GPU.
constexpr double kWorthIt = 30;
constexpr double kGuessedFlops = 40e9, kGuessedGpuFlops = 50e12;
constexpr char kPrefix[] = "speeds-";  // of cached ones

// Forward, recompute and backward of every sample.
bool IsWorthIt(const model::ModelSpec& model, const job::JobSpec& job, double flops) {
  double forward = 0;  // of a step
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    forward += model::ForwardFlops(model, layer, job.global_batch_size);
  }
  return 4 * forward * static_cast<double>(job.max_steps) / flops > kWorthIt;
}

// What is to be said of the time that a measuring took, and of what came out.
void SayHowItWas(const MeasureOptions& measure, const char* what, const Obtained& obtained) {
  const profile::Spread spread = profile::SpreadOf(obtained.profile);
  if (profile::MeasuredUnderLoad(spread)) {
    measure.say(absl::StrCat("plans go by speeds that were measured while something else ran (",
                             profile::DebugString(spread), "): --recalibrate measures again"));
  }
  if (obtained.cached) return;
  measure.say(absl::StrFormat("measured %s, in %.1f s%s", what, obtained.seconds,
                              obtained.cache_path.empty() ? "" : " (kept for the next time)"));
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
                                                         ObtainBy by) {
  HARMONY_ASSIGN_OR_RETURN(const profile::ProfileVersions versions, AskVersions(measure));
  HARMONY_ASSIGN_OR_RETURN(
      std::optional<Obtained> speeds,
      Obtain(
          CachePath(kPrefix, FingerprintOf(measure, work, versions)), by, measure.say,
          [&](const profile::Profile& cached) { return IsOf(cached, work); },
          [&] { return MeasureSpeeds(measure, versions, work); }));
  if (!speeds) return std::nullopt;
  SayHowItWas(measure, "how fast the devices are", *speeds);
  return std::move(speeds->profile);
}

// FLOPs and bytes at speeds that were measured in a moment.
absl::StatusOr<std::optional<profile::Profile>> BySpeeds(MeasureOptions measure, ObtainBy by) {
  const std::vector<plan::DeviceSpec> devices = measure.cluster.specs;
  HARMONY_ASSIGN_OR_RETURN(
      const profile::CalibrationWork work,
      profile::CalibrationWorkOf(measure.model, measure.config_json, measure.job, devices.size()));
  measure.cluster.devices = plan::ToString(work.devices);
  measure.cluster.specs = work.devices;
  HARMONY_ASSIGN_OR_RETURN(const std::optional<profile::Profile> speeds,
                           SpeedsOf(measure, work, by));
  if (!speeds) return std::nullopt;
  return profile::EstimateProfile(work, *speeds, measure.model, measure.job, devices);
}

// Each distinct layer measured, once.
absl::StatusOr<std::optional<profile::Profile>> ByLayers(const MeasureOptions& measure,
                                                         ObtainBy by) {
  HARMONY_ASSIGN_OR_RETURN(std::optional<Obtained> layers, ObtainProfile(measure, by));
  if (!layers) return std::nullopt;
  SayHowItWas(measure, "each distinct layer", *layers);
  layers->profile.in_passing = true;
  return std::move(layers->profile);
}

}  // namespace

absl::StatusOr<std::string> CalibratedProfile(const GlobalOptions& global, const JobOptions& job,
                                              const v1::SubmitRequest& request,
                                              const Cluster& cluster, CalibrateWhen when,
                                              const std::function<void(const std::string&)>& say) {
  if (!job.calibrate || !request.profile().empty() || plan::AllSpeedsGiven(cluster.specs)) {
    if (job.recalibrate) {
      say(request.profile().empty()
              ? "--recalibrate: nothing is to be measured, for the devices have all their speeds"
              : "--recalibrate: plans go by the profile that is given; `harmony profile "
                "--recalibrate` makes it anew");
    }
    return "";
  }
  absl::StatusOr<MeasureOptions> measure = MeasureOptionsOf(global, job, request);
  if (!measure.ok()) return "";
  const bool gpus = cluster.specs.front().kind == plan::DeviceKind::kCuda;
  const double guess = gpus ? kGuessedGpuFlops : kGuessedFlops;
  const bool may_measure = when == CalibrateWhen::kAlways ||
                           (when == CalibrateWhen::kIfWorthIt &&
                            (job.recalibrate || IsWorthIt(measure->model, measure->job, guess)));
  // Speeds by FLOPs are those of the emulating CPU; what runs on a device with a pace takes its
  // FLOPs at that, whatever it is.
  const bool by_layers = gpus || (!measure->times_follow_flops && !plan::AllPaced(cluster.specs));
  if (!may_measure && !AnythingCached(by_layers ? "" : kPrefix)) return "";
  measure->say = say;
  measure->cluster = cluster;
  measure->quick = true;
  const SignalMask as_before;
  const ObtainBy by = !may_measure      ? ObtainBy::kCacheOnly
                      : job.recalibrate ? ObtainBy::kMeasuring
                                        : ObtainBy::kCacheElseMeasuring;
  if (job.recalibrate && !may_measure) {
    say("--recalibrate: nothing is measured while jobs run or wait");
  }
  const absl::StatusOr<std::optional<profile::Profile>> found =
      by_layers ? ByLayers(*measure, by) : BySpeeds(*measure, by);
  if (absl::IsCancelled(found.status())) return found.status();
  if (!found.ok()) {
    say(absl::StrCat("planning by guesses, since nothing could be measured: ",
                     found.status().message()));
    return "";
  }
  return found->has_value() ? profile::ProfileToJson(**found) : "";
}

}  // namespace harmony::client
