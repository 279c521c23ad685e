#pragma once

// Durations of the commands that a plan's groups give rise to, asked of a CostModel once each.
// PURE.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/dispatch/issue/dispatcher.h"

namespace harmony::planner {

// Long before a step that begins at 0.
inline constexpr Nanos kEarlier(std::numeric_limits<int64_t>::min() / 4);

class TaskCosts {
 public:
  // `shape`: a plan of the microbatch size, sequence length and devices in question; its groups do
  // not matter. `model` must outlive it.
  TaskCosts(const model::ModelSpec& model, const plan::Plan& shape,
            std::unique_ptr<dispatch::CostModel> costs);

  // A task of a group, `first` or `last` of its step, over `task_microbatches` microbatches
  // (forwards; others have one). Backwards of a head only fused. `kept`: the forward keeps what it
  // computes, the backward recomputes nothing.
  Nanos Compute(command::TaskKind kind, model::LayerRange layers, int device, bool first = false,
                bool last = false, int task_microbatches = 1, bool kept = false);
  // Forward and backward of a layer that is a group of its own, one microbatch.
  Nanos ComputeAlone(int layer, int device);
  Nanos Load(int block, int device) const { return loads_[device][block]; }
  // At least, from the host or from another device that passes it on.
  Nanos PassedLoad(int block, int from, int device) const {
    return std::min(loads_[device][block], passed_[from][device][block]);
  }
  Nanos GradientOut(int reference, int device) const { return gradients_[device][reference]; }
  // The sum of one device to one that adds it to its own.
  Nanos SumTo(int reference, int from, int to) const;
  // One boundary tensor of so many microbatches.
  Nanos HiddenIn(int boundary, int device, int task_microbatches) {
    return HiddenOf(boundary, task_microbatches).in[device];
  }
  Nanos HiddenOut(int boundary, int device, int task_microbatches) {
    return HiddenOf(boundary, task_microbatches).out[device];
  }
  // REQUIRES: two devices.
  Nanos HiddenTo(int boundary, int from, int to, int task_microbatches) {
    return HiddenOf(boundary, task_microbatches).to[from][to];
  }
  // Of a batch input.
  Nanos InputIn(int input, int device, int task_microbatches) {
    return Of(task_microbatches).inputs_in[input][device];
  }
  Nanos LossOut(int device) const { return loss_out_[device]; }
  Nanos StepScalars() const { return Host(command::HostTaskKind::kStepScalars, -1, 0); }
  Nanos Clip() const { return Host(command::HostTaskKind::kClip, -1, 0); }
  // Of gradients that leave in so many parts, a power of two.
  Nanos Update(int block, int parts = 1) const { return updates_[Log2(parts)][block]; }
  Nanos Norm(int block, int parts = 1) const { return norms_[Log2(parts)][block]; }

  const dispatch::CostModel& model() const { return *costs_; }
  int num_devices() const { return lanes_.num_devices(); }

 private:
  // Copies of a boundary tensor, by device.
  struct Hidden {
    std::vector<Nanos> in, out;
    std::vector<std::vector<Nanos>> to;
  };
  // What grows with the microbatches of a task.
  struct Streams {
    absl::flat_hash_map<uint64_t, Nanos> compute;
    std::vector<Hidden> hidden;                 // by size
    std::vector<std::vector<Nanos>> inputs_in;  // by batch input and device
  };
  Streams& Of(int task_microbatches) {
    return task_microbatches == 1 ? one_ : OfMany(task_microbatches);
  }
  Streams& OfMany(int task_microbatches);
  Streams MakeStreams(int task_microbatches) const;
  Hidden MakeHidden(Bytes size) const;
  const Hidden& HiddenOf(int boundary, int task_microbatches) {
    return Of(task_microbatches).hidden[size_[boundary]];
  }
  Nanos Host(command::HostTaskKind kind, int block, int parts) const;
  Nanos Copy(command::LaneKind kind, int from, int to, Bytes size,
             command::TrafficClass traffic) const;

  const model::ModelSpec& spec_;
  command::LaneTable lanes_;
  const int64_t samples_;  // of a microbatch
  std::unique_ptr<dispatch::CostModel> costs_;
  std::vector<Bytes> sizes_;  // that boundary tensors of a microbatch have
  std::vector<int> size_;     // of a boundary, in `sizes_`
  Streams one_;
  std::map<int, Streams> many_;  // by the microbatches of a task
  static size_t Log2(int parts) {
    size_t log = 0;
    while (parts > 1) parts /= 2, ++log;
    return log;
  }

  std::vector<std::vector<Nanos>> loads_, gradients_;  // by device first
  // By device, device that takes it, block; of devices that share a link to the host.
  std::vector<std::vector<std::vector<Nanos>>> passed_;
  std::vector<Nanos> loss_out_;
  std::vector<std::vector<Nanos>> updates_, norms_;  // by the logarithm of the parts first
};

}  // namespace harmony::planner
