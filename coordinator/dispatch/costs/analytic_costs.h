#pragma once

// Durations from sizes and FLOPs: what orders the commands where no profile exists, and what paced
// devices follow. PURE.

#include <functional>
#include <memory>
#include <vector>

#include "common/plan/machine.h"
#include "coordinator/dispatch/issue/dispatcher.h"

namespace harmony::dispatch {

// The costs of a plan under consideration; the plan, and what the factory was made from, must
// outlive them.
using CostFactory = std::function<std::unique_ptr<CostModel>(const plan::Plan& plan)>;

class AnalyticCosts : public CostModel {
 public:
  // `devices`: rates of paced devices; where a rate is 0 (or devices are fewer than the plan has) a
  // modest guess stands in, which orders commands well enough. `model` must outlive it.
  AnalyticCosts(const model::ModelSpec& model, const plan::Plan& plan,
                const std::vector<plan::DeviceSpec>& devices);

  Nanos Duration(const command::Command& command) const override;

 private:
  struct Rates {
    double flops, h2d, d2h, p2p;  // per second
  };
  double FactorOf(const command::ComputeTask& task, int layer) const;

  const model::ModelSpec& model_;
  command::LaneTable lanes_;
  std::vector<Rates> rates_;
  double host_;  // bytes a second
  double microbatch_size_;
  double moments_;
  std::vector<double> flops_;  // forward, by layer, one microbatch
};

CostFactory AnalyticCostFactory(const model::ModelSpec& model,
                                const std::vector<plan::DeviceSpec>& devices);

}  // namespace harmony::dispatch
