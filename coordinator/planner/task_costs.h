#pragma once

// Durations of the commands that a plan's groups give rise to, asked of a CostModel once each.
// PURE.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/core/dispatcher.h"

namespace harmony {

class TaskCosts {
 public:
  // `shape`: a plan of the microbatch size, sequence length and devices in question; its groups do
  // not matter. `model` must outlive it.
  TaskCosts(const ModelSpec& model, const Plan& shape, std::unique_ptr<CostModel> costs);

  // One microbatch of a group, `first` or `last` of its step. Backwards of a head only fused.
  Nanos Compute(TaskKind kind, LayerRange layers, int device, bool first = false,
                bool last = false);
  Nanos Load(int block, int device) const { return loads_[device][block]; }
  Nanos GradientOut(int use, int device) const { return gradients_[device][use]; }
  // One boundary tensor of a microbatch.
  Nanos HiddenIn(int boundary, int device) const { return hidden_[size_[boundary]].in[device]; }
  Nanos HiddenOut(int boundary, int device) const { return hidden_[size_[boundary]].out[device]; }
  // REQUIRES: two devices.
  Nanos HiddenTo(int boundary, int from, int to) const {
    return hidden_[size_[boundary]].to[from][to];
  }
  Nanos TokensIn(int device) const { return tokens_in_[device]; }
  Nanos LossOut(int device) const { return loss_out_[device]; }
  Nanos Host(HostTaskKind kind, int block) const;
  Nanos Update(int block) const { return updates_[block]; }

  const CostModel& model() const { return *costs_; }
  int num_devices() const { return lanes_.num_devices(); }

 private:
  // Copies of a boundary tensor, by device.
  struct Hidden {
    std::vector<Nanos> in, out;
    std::vector<std::vector<Nanos>> to;
  };
  Hidden HiddenOf(Bytes size) const;
  Nanos Copy(LaneKind kind, int from, int to, Bytes size, TrafficClass traffic) const;

  const ModelSpec& spec_;
  LaneTable lanes_;
  int64_t samples_;
  std::unique_ptr<CostModel> costs_;
  absl::flat_hash_map<uint64_t, Nanos> compute_;
  std::vector<Hidden> hidden_;                         // by size
  std::vector<int> size_;                              // of a boundary, in `hidden_`
  std::vector<std::vector<Nanos>> loads_, gradients_;  // by device first
  std::vector<Nanos> tokens_in_, loss_out_, updates_;
};

}  // namespace harmony
