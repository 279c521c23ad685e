#pragma once

// Lower bounds of the time of a step, without a simulation. PURE.
//
// OfPlan is the schedule of one step with some of its constraints left out: copies whose way is
// decided late take the quicker way and no lane, memory is waited for only where it certainly is
// in use, the step begins with empty lanes. What is left out can only make a step longer, so no
// simulated step is shorter; tests hold it against simulations of random plans.

#include <algorithm>
#include <vector>

#include "coordinator/dispatch/graph/group_executions.h"
#include "coordinator/planner/timing/task_costs.h"

namespace harmony::planner {

// The executions of one step in the order of execution (forward ascending, the fused one, backward
// descending; of each group its shards), and the sizes of their memory items.
struct StepExecutions {
  std::vector<dispatch::GroupExecution> executions;
  std::vector<dispatch::ItemSizes> items;
  int for_all = 0;  // above 0: of each group so many shards, the first, which stand for the others
};
StepExecutions ExecutionsOf(const model::ModelSpec& model, const plan::Plan& plan, int for_all = 0);
// Devices that are alike do the same with microbatches of their own, each of several runs all
// groups, and has its links to itself: then so many, the first, stand for all. One does where each
// adds up what it makes; else as many as add up a part of the gradients together. 0: not so.
int DevicesForAll(const plan::Plan& plan);

// Microbatches of a step are like those in its middle, but for the first and the last: not so where
// shards or parts of gradients begin and end between them.
bool AlikeMicrobatches(const plan::Plan& plan);

// Of a step of very many microbatches, so many are looked at where the rest is more of the same: a
// multiple of twice the forward tasks' size and the replicas, so that half of it is a step, too.
// Else all of them.
int SampleOfMicrobatches(const plan::Plan& plan);

// A time of the whole step, from that of its first microbatches: where they are a sample, it grows
// with the rest as between half of the sample and the sample.
template <typename TimeOf>
Nanos OfAllMicrobatches(const plan::Plan& plan, const TimeOf& time_of) {
  const int sample = SampleOfMicrobatches(plan);
  const Nanos time = time_of(sample);
  const int64_t more = plan.num_microbatches - sample;
  if (more == 0) return time;
  const int half = sample / 2;
  const Nanos grown = std::max(time - time_of(half), Nanos());
  return time + Nanos(grown.count() * more / half);
}

// Which sets of devices a plan's groups have.
enum class DeviceSets {
  kSingle,  // each one device, as the stages of a pipeline (mode: harmony-pp)
  kAll,     // each all devices, once (mode: harmony-dp); see AllDevices
  kAny,     // each its own
};

// As many of the devices as divide the replicas, each once.
plan::DeviceSet AllDevices(const plan::Plan& shape);

struct PlanBound {
  Nanos step;    // the larger of the two
  Nanos chain;   // from the update of layer 0 to the next
  Nanos lane;    // the busiest lane, link or what else lanes share
  Nanos copies;  // all copies between host and devices, one after the other
};

class Bounds {
 public:
  // Both must outlive it.
  Bounds(const model::ModelSpec& model, TaskCosts& costs) : model_(model), costs_(costs) {}

  // REQUIRES: each execution fits the resident region of its device. The schedule is that of the
  // first `microbatches` only, and the others are added as work of the lanes. All of them or,
  // where they are alike, a multiple of microbatches_per_forward_task, four times as large at
  // least; 0: a sample.
  PlanBound OfPlan(const plan::Plan& plan, const StepExecutions& step, int microbatches = 0);

  // Of all plans of the same microbatches, optimizer and devices whose groups have such sets of
  // devices and whose forward tasks have one of these sizes, whatever their groups. REQUIRES: the
  // time of a group is a constant and a sum over its layers.
  Nanos OfAnyPlan(const plan::Plan& shape, DeviceSets sets,
                  const std::vector<int>& forward_task_sizes);

 private:
  Nanos Marginal(command::TaskKind kind, int layer, int device, int task_microbatches, bool kept);
  int64_t RoomForActivations(const plan::Plan& shape) const;
  void FindMarginals(const plan::Plan& shape, const std::vector<int>& forward_task_sizes);
  Nanos OnSharedCores(Nanos work) const;
  Nanos FusedFrom(const plan::Plan& shape, DeviceSets sets, int first);
  Nanos ShardsFusedFrom(const plan::Plan& shape, int first);
  Nanos CopiesOfAnyPlan(const plan::Plan& shape, DeviceSets sets);

  const model::ModelSpec& model_;
  TaskCosts& costs_;
  // What forward and backward of a layer add to the time of a group at least, for a microbatch: by
  // layer, device.
  std::vector<std::vector<Nanos>> marginal_;
};

}  // namespace harmony::planner
