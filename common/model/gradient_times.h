#pragma once

// How far a task that goes back through layers has come when it first writes to the gradients of
// each. Modelled: by FLOPs, a backward counting as two forwards. PURE.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "common/model/model_spec.h"

namespace harmony::model {

enum class BackwardTask {
  kFused,       // forward, loss and backward of the last layers
  kRecomputes,  // forward from the stash, then backward
  kKept,        // backward alone: what the forward computed was kept
};

// What a task that goes back through layers may lack of their gradients when it begins.
enum class Awaited : uint8_t {
  kBuffers,  // to write to: it waits where it first writes to those of a layer
  kSums,     // of other devices: it waits in its end, where it adds them to its own
};

class GradientTimes {
 public:
  explicit GradientTimes(const ModelSpec& model);

  // By layer of the range, from its first one: the part of the task's duration that has passed.
  std::vector<double> Shares(BackwardTask task, LayerRange layers) const;

 private:
  std::vector<double> flops_;  // forward of a sample, by layer
};

// How long a task waits, on its way, for gradients that are there late.
class GradientStall {
 public:
  // Of a task that began at `begin` and takes `duration` without.
  GradientStall(const GradientTimes& times, BackwardTask task, LayerRange layers, Awaited awaited,
                Nanos begin, Nanos duration)
      : first_layer_(layers.first), begin_(begin), duration_(duration) {
    if (awaited == Awaited::kBuffers) shares_ = times.Shares(task, layers);
  }

  // What it awaits of a layer is there at `at`. REQUIRES: of the last layer first.
  void FreeAt(int layer, Nanos at) {
    const double share = shares_.empty() ? 1 : shares_[static_cast<size_t>(layer - first_layer_)];
    const Nanos comes = begin_ + total_ + Nanos::FromSeconds(duration_.seconds() * share);
    total_ += std::max(Nanos(), at - comes);
  }
  // So far.
  Nanos total() const { return total_; }

 private:
  int first_layer_;
  std::vector<double> shares_;  // of the duration, by layer; empty: all of it
  Nanos begin_, duration_, total_;
};

}  // namespace harmony::model
