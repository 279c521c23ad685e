#pragma once

// A profile from FLOPs and bytes, at speeds that were measured in a moment: what plans go by where
// the job's layers have not been measured; and what a profile says of a device that there is not.
// PURE.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/profile.h"

namespace harmony::profile {

// FLOPs of a backward with recompute: so many times those of the forward.
inline constexpr double kBackwardForwards = 3;

// What is measured: one layer, forward and backward, while all devices compute; their links; the
// host. The devices (as many as there are, kMostCalibrated at most) are not paced and have memory
// for that and no more, so that it stands for all jobs of the model, and for all large models.
inline constexpr size_t kMostCalibrated = 4;
struct CalibrationWork {
  model::ModelSpec model;
  std::string config_json;
  job::JobSpec job;  // its sequence length and batch: one microbatch
  int layer = 0;
  std::vector<plan::DeviceSpec> devices;
  double forward_flops = 0;  // of the layer
};
// A block of the model; where that is a matter of seconds, one of a smaller model.
absl::StatusOr<CalibrationWork> CalibrationWorkOf(const model::ModelSpec& model,
                                                  const std::string& config_json,
                                                  const job::JobSpec& job, size_t num_devices);

// `speeds`: devices as of the work, each with its links and with one layer of one size, whose
// backward is there; the host. Layers take their FLOPs at the speed of a device (a backward
// with recompute those of three forwards), and copies their bytes at that of a link; speeds
// that devices are given count before measured ones. Marked as `calibrated`.
Profile EstimateProfile(const CalibrationWork& work, const Profile& speeds,
                        const model::ModelSpec& model, const job::JobSpec& job,
                        const std::vector<plan::DeviceSpec>& devices);

// Where each kind of figure of such a profile comes from: modelled (the device's specification) or
// calibrated. REQUIRES: it is of this model and these devices.
std::string DescribeEstimate(const Profile& profile, const model::ModelSpec& model,
                             const std::vector<plan::DeviceSpec>& devices);

// Any profile with one more device, like the last one in all that was measured or given; the links
// between devices, of which a single one has none, are as fast as the slower one of its links to
// the host, where no speed is given. Nothing: the last device was measured to share what it
// computes with, or one more would have no cores of its own.
std::optional<Profile> WithOneMoreDevice(Profile profile,
                                         const std::vector<plan::DeviceSpec>& devices);

}  // namespace harmony::profile
