#include "coordinator/dispatch/costs/calibrated_costs.h"

#include <utility>

#include "common/command/lane_kinds.h"

namespace harmony::dispatch {

CalibratedCosts::CalibratedCosts(std::unique_ptr<const CostModel> base, Calibration calibration,
                                 int num_devices)
    : base_(std::move(base)), calibration_(std::move(calibration)), lanes_(num_devices) {}

double CalibratedCosts::ScaleOf(const command::Command& command) const {
  const command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
  if (lane.kind == command::LaneKind::kHostCompute) return calibration_.updates;
  if (lane.kind == command::LaneKind::kHostIo) {
    const auto* task = std::get_if<command::HostTask>(&command.body);
    return task != nullptr && task->kind == command::HostTaskKind::kLoadBatch ? calibration_.data
                                                                              : 1;
  }
  if (lane.device >= static_cast<int>(calibration_.devices.size())) return 1;
  const Calibration::Device& device = calibration_.devices[lane.device];
  const command::LaneLink link = command::TraitsOf(lane.kind).link;
  if (link != command::LaneLink::kNone)
    return command::OfLink(link, device.h2d, device.d2h, device.p2p);
  const auto* task = std::get_if<command::ComputeTask>(&command.body);
  const bool forward = task != nullptr && task->kind == command::TaskKind::kForward;
  return forward ? device.forward : device.backward;
}

Nanos CalibratedCosts::Duration(const command::Command& command) const {
  const Nanos modelled = base_->Duration(command);
  const double scale = ScaleOf(command);
  return scale == 1 ? modelled : Nanos::FromSeconds(modelled.seconds() * scale);
}

CostFactory CalibratedCostFactory(CostFactory base, Calibration calibration) {
  return [base = std::move(base), calibration = std::move(calibration)](const plan::Plan& plan) {
    return std::make_unique<CalibratedCosts>(base(plan), calibration,
                                             static_cast<int>(plan.devices.size()));
  };
}

}  // namespace harmony::dispatch
