#pragma once

// What the layers of a model cost at one microbatch size: times from the same cost functions that
// our planner uses (dispatch::CostModel), sizes from the same description (common/model). PURE.

#include <vector>

#include "common/job/job_spec.h"
#include "common/model/model_spec.h"
#include "common/plan/lane_resources.h"
#include "common/plan/machine.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/timing/task_costs.h"

namespace harmony::baselines {

class LayerCosts {
 public:
  // All must outlive it. REQUIRES: the microbatch divides the job's global batch.
  LayerCosts(const model::ModelSpec& model, const job::JobSpec& job,
             const plan::MachineSpec& machine, const dispatch::CostFactory& costs,
             int64_t microbatch);

  const model::ModelSpec& model() const { return model_; }
  const job::JobSpec& job() const { return job_; }
  const plan::MachineSpec& machine() const { return machine_; }
  int64_t microbatch() const { return microbatch_; }
  int num_devices() const { return static_cast<int>(machine_.devices.size()); }
  int num_layers() const { return model_.num_layers(); }
  // Whether times and sizes are known for this microbatch size: profiles cover some only.
  bool known() const { return known_; }

  // ---- Times ----

  // A layer as part of a task over all layers: what a task takes beside its layers falls on the
  // first of them in the task's order, so that no baseline pays it once a layer. The last layer's
  // forward runs within its backward (one fused task, as in our plans), which `Backward` is then.
  Nanos Forward(int layer, int device, bool recompute) const;
  Nanos Backward(int layer, int device, bool recompute) const;
  Nanos Copy(command::LaneKind kind, int device, Bytes size) const;
  Nanos Update(int block) const { return tasks_.Update(block); }  // on the host
  // Lanes of the machine, and what they share.
  plan::LaneResources resources() const;

  // ---- Sizes, of a microbatch ----

  Bytes Boundary(int layer) const { return boundary_[static_cast<size_t>(layer)]; }  // its input
  // What autograd keeps of a layer from forward to backward, its input apart; nothing of the last.
  Bytes Saved(int layer) const { return saved_[static_cast<size_t>(layer)]; }
  // The batch inputs that a layer reads.
  Bytes Inputs(int layer) const { return inputs_[static_cast<size_t>(layer)]; }
  // The most that a layer's task holds beside the tensors above, by the bound that our plans count:
  // of layers that can leave what they save in a place of its own, what is measured of that.
  Bytes ForwardScratch(int layer, bool recompute) const;
  Bytes BackwardScratch(int layer, bool recompute) const;

 private:
  struct Times {
    std::vector<Nanos> forward, backward;  // by layer
  };
  Times TimesOf(int device, bool kept);
  void MeasureSizes();

  const model::ModelSpec& model_;
  const job::JobSpec& job_;
  const plan::MachineSpec& machine_;
  const int64_t microbatch_;
  const plan::Plan shape_;  // a plan without groups, which costs are asked with
  const command::LaneTable lanes_;
  planner::TaskCosts tasks_;
  bool known_ = true;
  std::vector<Times> recomputing_, keeping_;  // by device
  std::vector<Bytes> boundary_, saved_, inputs_, forward_peak_, backward_peak_;
  std::vector<Bytes> keeping_forward_, kept_backward_;  // where what is saved lies apart
};

}  // namespace harmony::baselines
