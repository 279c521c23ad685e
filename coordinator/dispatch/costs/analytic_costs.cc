#include "coordinator/dispatch/costs/analytic_costs.h"

#include "common/command/lane_kinds.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/profile/profile.h"

namespace harmony::dispatch {
namespace {

// Guesses for what is not paced: one core's share of a small machine.
constexpr double kFlops = 40e9, kCopy = 4e9;
constexpr double kTaskOverhead = 20e-6, kCopyOverhead = 5e-6;
// Against forward: backward alone, with recompute; the fused task counts as the latter.
constexpr double kBackwardFactor = 2, kRecomputeFactor = 3;

double RateOr(double rate, double guess) { return rate > 0 ? rate : guess; }

}  // namespace

AnalyticCosts::AnalyticCosts(const model::ModelSpec& model, const plan::Plan& plan,
                             const std::vector<plan::DeviceSpec>& devices)
    : model_(model),
      lanes_(static_cast<int>(plan.devices.size())),
      host_(RateOr(plan::HostRate(devices).value, plan::kHostGuess.value)),
      microbatch_size_(static_cast<double>(plan.microbatch_size)),
      moments_(static_cast<double>(plan.optimizer_moments)) {
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const plan::DeviceSpec spec = d < devices.size() ? devices[d] : plan::DeviceSpec();
    rates_.push_back({RateOr(spec.flops.value, kFlops), RateOr(spec.h2d.value, kCopy),
                      RateOr(spec.d2h.value, kCopy), RateOr(spec.p2p.value, kCopy)});
  }
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    flops_.push_back(model::ForwardFlops(model, layer, plan.microbatch_size));
  }
}

// Against the layer's forward.
double AnalyticCosts::FactorOf(const command::ComputeTask& task, int layer) const {
  if (task.kind == command::TaskKind::kForward) return 1;
  const bool again = !task.kept || model_.cost_of(layer).recompute == model::Recompute::kAlways;
  return again ? kRecomputeFactor : kBackwardFactor;
}

Nanos AnalyticCosts::Duration(const command::Command& command) const {
  const command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
  if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
    double flops = 0;
    for (int layer = task->layers.first; layer <= task->layers.last; ++layer) {
      flops += flops_[layer] * FactorOf(*task, layer);
    }
    flops *= static_cast<double>(task->samples) / microbatch_size_;
    return Nanos::FromSeconds(kTaskOverhead + flops / rates_[lane.device].flops);
  }
  if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
    const Rates& rates = rates_[lane.device];
    const double rate =
        command::OfLink(command::TraitsOf(lane.kind).link, rates.h2d, rates.d2h, rates.p2p);
    return Nanos::FromSeconds(kCopyOverhead + static_cast<double>(copy->size.count()) / rate);
  }
  const auto& host = std::get<command::HostTask>(command.body);
  double bytes = 0;
  if (host.kind == command::HostTaskKind::kUpdate || host.kind == command::HostTaskKind::kNorm) {
    const model::ParamBlock& block = model_.blocks[host.block];
    // Reads g of each reference and part; an update reads and writes the weights and moments, too,
    // and writes working copies.
    bytes = static_cast<double>(block.gradient_bytes.count()) *
            static_cast<double>(host.gradient_records.size());
    if (host.kind == command::HostTaskKind::kUpdate) {
      bytes +=
          static_cast<double>(profile::UpdatedBytes(block, static_cast<int>(moments_)).count());
    }
  } else if (host.kind == command::HostTaskKind::kCheckpoint ||
             host.kind == command::HostTaskKind::kInitialize) {
    bytes =
        static_cast<double>(command::PersistentBytes(model_, static_cast<int>(moments_)).count());
  }
  return Nanos::FromSeconds(kTaskOverhead + bytes / host_);
}

CostFactory AnalyticCostFactory(const model::ModelSpec& model,
                                const std::vector<plan::DeviceSpec>& devices) {
  return [&model, &devices](const plan::Plan& plan) {
    return std::make_unique<AnalyticCosts>(model, plan, devices);
  };
}

}  // namespace harmony::dispatch
