#include "coordinator/dispatch/costs/scaled_costs.h"

#include <utility>

#include "common/command/lane_kinds.h"

namespace harmony::dispatch {

ScaledCosts::ScaledCosts(std::unique_ptr<const CostModel> base, CostScales scales, int num_devices)
    : base_(std::move(base)), scales_(std::move(scales)), lanes_(num_devices) {}

double ScaledCosts::ScaleOf(const command::Command& command) const {
  const command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
  if (lane.kind == command::LaneKind::kHostCompute) return scales_.updates;
  if (lane.kind == command::LaneKind::kHostIo) {
    const auto* task = std::get_if<command::HostTask>(&command.body);
    return task != nullptr && task->kind == command::HostTaskKind::kLoadBatch ? scales_.data : 1;
  }
  if (lane.device >= static_cast<int>(scales_.devices.size())) return 1;
  const CostScales::Device& device = scales_.devices[lane.device];
  const command::LaneLink link = command::TraitsOf(lane.kind).link;
  if (link != command::LaneLink::kNone)
    return command::OfLink(link, device.h2d, device.d2h, device.p2p);
  const auto* task = std::get_if<command::ComputeTask>(&command.body);
  const bool forward = task != nullptr && task->kind == command::TaskKind::kForward;
  return forward ? device.forward : device.backward;
}

Nanos ScaledCosts::Duration(const command::Command& command) const {
  const Nanos modelled = base_->Duration(command);
  const double scale = ScaleOf(command);
  return scale == 1 ? modelled : Nanos::FromSeconds(modelled.seconds() * scale);
}

CostFactory ScaledCostFactory(CostFactory base, CostScales scales) {
  return [base = std::move(base), scales = std::move(scales)](const plan::Plan& plan) {
    return std::make_unique<ScaledCosts>(base(plan), scales, static_cast<int>(plan.devices.size()));
  };
}

}  // namespace harmony::dispatch
