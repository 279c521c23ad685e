#pragma once

// Modelled durations, corrected by what a run has measured. PURE.

#include <memory>
#include <vector>

#include "coordinator/dispatch/costs/analytic_costs.h"

namespace harmony::dispatch {

// Measured over modelled time, by what takes it. 1: as modelled, or not known.
struct CostScales {
  struct Device {
    double forward = 1, backward = 1;  // tasks; the fused one counts as a backward
    double h2d = 1, d2h = 1, p2p = 1;  // copies
    bool operator==(const Device&) const = default;
  };
  std::vector<Device> devices;   // fewer than there are: the rest as modelled
  double updates = 1, data = 1;  // the host's tasks: updates and norms; batches
  bool operator==(const CostScales&) const = default;
};

class ScaledCosts : public CostModel {
 public:
  ScaledCosts(std::unique_ptr<const CostModel> base, CostScales scales, int num_devices);

  Nanos Duration(const command::Command& command) const override;
  plan::CoreSharing Cores() const override { return base_->Cores(); }
  // As modelled: what paced devices go by, whatever they were measured to take.
  const CostModel& base() const { return *base_; }

 private:
  double ScaleOf(const command::Command& command) const;

  const std::unique_ptr<const CostModel> base_;
  const CostScales scales_;
  const command::LaneTable lanes_;
};

// `base` for every plan, so corrected.
CostFactory ScaledCostFactory(CostFactory base, CostScales scales);

}  // namespace harmony::dispatch
