#include "coordinator/core/calibrated_costs.h"

#include <utility>

namespace harmony {

CalibratedCosts::CalibratedCosts(std::unique_ptr<const CostModel> base, Calibration calibration,
                                 int num_devices)
    : base_(std::move(base)), calibration_(std::move(calibration)), lanes_(num_devices) {}

double CalibratedCosts::ScaleOf(const Command& command) const {
  const Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
  if (lane.kind == LaneKind::kHostCompute) return calibration_.updates;
  if (lane.kind == LaneKind::kHostIo) {
    const auto* task = std::get_if<HostTask>(&command.body);
    return task != nullptr && task->kind == HostTaskKind::kLoadBatch ? calibration_.data : 1;
  }
  if (lane.device >= static_cast<int>(calibration_.devices.size())) return 1;
  const Calibration::Device& device = calibration_.devices[lane.device];
  switch (lane.kind) {
    case LaneKind::kCompute: {
      const auto* task = std::get_if<ComputeTask>(&command.body);
      const bool forward = task != nullptr && task->kind == TaskKind::kForward;
      return forward ? device.forward : device.backward;
    }
    case LaneKind::kH2DBulk:
    case LaneKind::kH2DStream:
      return device.h2d;
    case LaneKind::kD2H:
      return device.d2h;
    case LaneKind::kP2P:
      return device.p2p;
    case LaneKind::kHostCompute:
    case LaneKind::kHostIo:
      break;
  }
  return 1;
}

Nanos CalibratedCosts::Duration(const Command& command) const {
  const Nanos modelled = base_->Duration(command);
  const double scale = ScaleOf(command);
  return scale == 1 ? modelled : Nanos::FromSeconds(modelled.seconds() * scale);
}

CostFactory CalibratedCostFactory(CostFactory base, Calibration calibration) {
  return [base = std::move(base), calibration = std::move(calibration)](const Plan& plan) {
    return std::make_unique<CalibratedCosts>(base(plan), calibration,
                                             static_cast<int>(plan.devices.size()));
  };
}

}  // namespace harmony
