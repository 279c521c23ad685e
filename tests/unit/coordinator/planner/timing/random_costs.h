#pragma once

// Costs of random plans, drawn so that each kind of lane is what binds at times.

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/dispatch/costs/analytic_costs.h"
#include "tests/sim/random_case.h"

namespace harmony::planner {

inline std::vector<plan::DeviceSpec> RandomDevices(CounterRandom& random, size_t count) {
  std::vector<plan::DeviceSpec> devices(count);
  for (plan::DeviceSpec& device : devices) {
    // From free to dear, each by itself, so that each of them is what binds at times.
    const auto rate = [&](double least) {
      return least * static_cast<double>(uint64_t{1} << random.Below(12));
    };
    device.flops = {rate(1e7)};
    device.h2d = {rate(1e5)};
    device.d2h = {rate(1e5)};
    device.p2p = {rate(1e5)};
  }
  return devices;
}

// Tasks of several samples take less than each by itself, as measured ones do.
class Sublinear : public dispatch::CostModel {
 public:
  explicit Sublinear(std::unique_ptr<dispatch::CostModel> costs) : costs_(std::move(costs)) {}
  Nanos Duration(const command::Command& command) const override {
    const Nanos all = costs_->Duration(command);
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr) return all;
    const double saved = std::pow(static_cast<double>(task->samples), -0.4);
    return Nanos(static_cast<int64_t>(static_cast<double>(all.count()) * saved));
  }

 private:
  const std::unique_ptr<dispatch::CostModel> costs_;
};

// Devices that compute on fewer cores than there are of them.
class OnFewerCores : public dispatch::CostModel {
 public:
  OnFewerCores(std::unique_ptr<dispatch::CostModel> costs, plan::CoreSharing cores)
      : costs_(std::move(costs)), cores_(std::move(cores)) {}
  Nanos Duration(const command::Command& command) const override {
    return costs_->Duration(command);
  }
  plan::CoreSharing Cores() const override { return cores_; }

 private:
  const std::unique_ptr<dispatch::CostModel> costs_;
  const plan::CoreSharing cores_;
};

inline plan::CoreSharing RandomCores(CounterRandom& random, size_t devices) {
  plan::CoreSharing cores;
  if (devices < 2 || random.Below(3) > 0) return cores;
  for (size_t d = 0; d < devices; ++d) {
    if (random.Below(8) > 0) cores.devices.push_back(static_cast<int>(d));
  }
  cores.at_once = 1 + static_cast<int>(random.Below(devices));
  cores.threads = static_cast<int>(random.Below(3));
  return cores;
}

inline std::unique_ptr<dispatch::CostModel> RandomCosts(const sim::RandomCase& c, uint64_t seed) {
  CounterRandom random(seed, 5);
  std::unique_ptr<dispatch::CostModel> costs = std::make_unique<dispatch::AnalyticCosts>(
      c.model, c.plan, RandomDevices(random, c.plan.devices.size()));
  if (random.Below(2) == 0) costs = std::make_unique<Sublinear>(std::move(costs));
  return std::make_unique<OnFewerCores>(std::move(costs),
                                        RandomCores(random, c.plan.devices.size()));
}

}  // namespace harmony::planner
