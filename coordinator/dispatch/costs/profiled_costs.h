#pragma once

// Durations from a measured profile. PURE.

#include <map>
#include <memory>
#include <vector>

#include "common/profile/profile.h"
#include "coordinator/dispatch/costs/scaled_costs.h"

namespace harmony::dispatch {

// A task takes the sum of what its layers were measured to take, at its microbatch size (between
// measured sizes on the line through the neighbours); a transfer latency + bytes / bandwidth; a
// host task a fixed part + bytes / rate. Each command also bears the wake-up of the one that waits
// for it. Where several devices work at the same time, the rates measured with all links busy
// count; but not of a link that is shared by name (root=): there copies take turns. Devices whose
// tasks were measured to take longer while all of them compute take turns on the cores that they
// share.
class ProfiledCosts : public CostModel {
 public:
  // REQUIRES: the profile is of this model, a job with the plan's sequence length and the plan's
  // devices (CheckProfile was OK, or WithOneMoreDevice made it of such a one). All must outlive it.
  ProfiledCosts(const profile::Profile& profile, const model::ModelSpec& model,
                const plan::Plan& plan);

  Nanos Duration(const command::Command& command) const override;
  plan::CoreSharing Cores() const override { return cores_; }

 private:
  // Seconds of layers [0, i) for one microbatch, by i.
  struct Sums {
    std::vector<double> forward, backward_inner, keeping_forward, kept_backward, zero, check;
    std::vector<double> backward;  // of layer i alone, as the last of its group
  };
  struct Device {
    double slowdown = 1;
    profile::LinkProfile h2d, d2h, p2p;
    bool shares_root = false;
    // By samples: of the plan's microbatches, and of forward tasks of any size (of those only what
    // forwards need).
    std::map<int64_t, Sums> sums;
  };

  // From how much longer tasks take while all devices compute.
  void FindCores();
  Sums SumsOf(const profile::DeviceProfile& device, int64_t samples) const;
  static double ComputeSeconds(const Device& device, const Sums& sums,
                               const command::ComputeTask& task);
  double TransferSeconds(const Device& device, command::LaneKind lane, Bytes size) const;
  double HostSeconds(const command::HostTask& task) const;

  const profile::Profile& profile_;
  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const command::LaneTable lanes_;
  std::vector<Device> devices_;
  plan::CoreSharing cores_;
};

// By the profile, or where there is none by the estimate; corrected.
std::unique_ptr<const ScaledCosts> MakeCosts(const profile::Profile* profile,
                                             const CostScales& scales,
                                             const model::ModelSpec& model, const plan::Plan& plan,
                                             const std::vector<plan::DeviceSpec>& devices);

CostFactory ProfiledCostFactory(std::shared_ptr<const profile::Profile> profile,
                                const model::ModelSpec& model);

}  // namespace harmony::dispatch
