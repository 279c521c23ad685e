#pragma once

// A chain of equal layers in round numbers, on devices whose speeds are round numbers, too: what a
// schedule does with them can be worked out by hand.

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/baselines/baseline.h"

namespace harmony::baselines {

// Weights, gradients and each of two moments of a layer take one unit.
inline constexpr Bytes kUnit(256);

struct ToySpeeds {
  // Seconds; the last layer's forward and backward together take `head`.
  double forward = 1, backward = 2, head = 3;
  double recompute = 0;                          // more of a backward that has to
  double h2d = 0, d2h = 0, p2p = 0, update = 0;  // of a unit; of a block
};

class ToyCosts : public dispatch::CostModel {
 public:
  ToyCosts(const ToySpeeds& speeds, int layers, int devices)
      : speeds_(speeds), layers_(layers), lanes_(devices) {}

  Nanos Duration(const command::Command& command) const override {
    if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
      double seconds = 0;
      for (int l = task->layers.first; l <= task->layers.last; ++l) {
        const bool forward = task->kind == command::TaskKind::kForward;
        seconds += l + 1 == layers_ ? speeds_.head : forward ? speeds_.forward : speeds_.backward;
        const bool again = task->kind == command::TaskKind::kBackward && !task->kept;
        if (again && l + 1 < layers_) seconds += speeds_.recompute;
      }
      return Nanos::FromSeconds(seconds);
    }
    if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
      const auto kind = lanes_.LaneAt(static_cast<int>(command.header.lane)).kind;
      const double of_unit = kind == command::LaneKind::kD2H   ? speeds_.d2h
                             : kind == command::LaneKind::kP2P ? speeds_.p2p
                                                               : speeds_.h2d;
      return Nanos::FromSeconds(of_unit * static_cast<double>(copy->size.count()) / 256);
    }
    return Nanos::FromSeconds(speeds_.update);
  }

 private:
  const ToySpeeds speeds_;
  const int layers_;
  const command::LaneTable lanes_;
};

struct Toy {
  // `boundary`, `saved`: units of a sample between layers, and of what a layer keeps.
  Toy(int layers, int devices, int units_of_memory, int64_t batch, const ToySpeeds& speeds = {},
      int boundary = 0, int saved = 0) {
    model.name = "toy";
    model::LayerCost cost;
    cost.name = cost.work = "toy";
    cost.recompute = model::Recompute::kUnlessKept;
    cost.saved_per_sample = kUnit * saved;
    model.costs = {cost};
    for (int l = 0; l < layers; ++l) {
      model.layers.push_back({l, 0, {}});
      model.boundaries.emplace_back();
      if (l > 0 && boundary > 0) {
        model.boundaries.back().push_back({"x", DType::kF32, {int64_t{64} * boundary}});
      }
      model::ParamBlock block;
      block.name = absl::StrCat("layer.", l);
      block.owner_layer = l;
      model::TensorSpec tensor;
      tensor.name = block.name;
      tensor.shape = {64};
      model::AddTensor(block, std::move(tensor));
      model::AddReference(model, l, model::AddBlock(model, std::move(block)));
    }
    model.boundaries.emplace_back();
    job.global_batch_size = batch;
    job.micro_batch_size = 1;
    for (int d = 0; d < devices; ++d) {
      plan::DeviceSpec device;
      device.ordinal = d;
      device.memory = kUnit * units_of_memory;
      machine.devices.push_back(device);
    }
    costs = [speeds, layers, devices](const plan::Plan&) {
      return std::make_unique<ToyCosts>(speeds, layers, devices);
    };
  }

  Outcome Run(Schedule schedule, Setting setting) const {
    const LayerCosts layers(model, job, machine, costs, 1);
    return Simulate({.name = "toy", .schedule = schedule}, layers, setting);
  }
  Outcome Run(const Baseline& baseline) const { return Best(baseline, model, job, machine, costs); }

  model::ModelSpec model;
  job::JobSpec job;
  plan::MachineSpec machine;
  dispatch::CostFactory costs;
};

inline int64_t Units(int64_t bytes) { return bytes / kUnit.count(); }
inline int64_t Units(const Outcome& outcome, Traffic traffic) {
  return Units(outcome.bytes[static_cast<size_t>(traffic)]);
}

}  // namespace harmony::baselines
