#pragma once

// How far a task that goes back through layers has come when it first writes to the gradients of
// each. Modelled: by FLOPs, a backward counting as two forwards. PURE.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/units.h"
#include "common/model/model_spec.h"

namespace harmony::model {

enum class BackwardTask {
  kFused,       // forward, loss and backward of the last layers
  kRecomputes,  // forward from the stash, then backward
  kKept,        // backward alone: what the forward computed was kept
};

class GradientTimes {
 public:
  explicit GradientTimes(const ModelSpec& model);

  // By layer of the range, from its first one: the part of the task's duration that has passed.
  std::vector<double> Shares(BackwardTask task, LayerRange layers) const;

 private:
  std::vector<double> flops_;  // forward of a sample, by layer
};

// How long a task waits, on its way, for buffers of gradients that are free late.
class GradientStall {
 public:
  // Of a task that began at `begin` and takes `duration` without.
  GradientStall(const GradientTimes& times, BackwardTask task, LayerRange layers, Nanos begin,
                Nanos duration)
      : first_layer_(layers.first),
        shares_(times.Shares(task, layers)),
        begin_(begin),
        duration_(duration) {}

  // Buffers of a layer are free at `at`. REQUIRES: of the last layer first.
  void FreeAt(int layer, Nanos at) {
    const double share = shares_[static_cast<size_t>(layer - first_layer_)];
    const Nanos comes = begin_ + total_ + Nanos::FromSeconds(duration_.seconds() * share);
    total_ += std::max(Nanos(), at - comes);
  }
  // So far.
  Nanos total() const { return total_; }

 private:
  int first_layer_;
  std::vector<double> shares_;
  Nanos begin_, duration_, total_;
};

}  // namespace harmony::model
