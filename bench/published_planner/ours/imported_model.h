#pragma once

// A profile of the published planner as a source of a model description, with a job, a machine and
// its costs: what our planner takes. PURE.
//
// Layers, times and sizes are the profile's. A layer's weights and buffers are one parameter block,
// so its buffers travel with weights and gradients, as in the published cost model. The links are
// the published model's, too: each GPU's share of the host link in each direction, all the time,
// and its own link to its peers. What our runtime does differently is ours: updates run one after
// the other on the one host worker, copies overlap with tasks, and no task ends with a delay.
//
// Device memory is what our planner counts: weights, gradients and streaming slots as the
// dispatcher lays them out, what is kept, and workspace. The workspace of a layer is its measured
// peak without weights, gradients, input, output and their gradients. A forward task needs that of
// its largest layer, with the tensors between layers; a backward task that of all its layers
// together (an upper bound: a peak does not tell what of it is kept for the backward).

#include <memory>

#include "absl/status/statusor.h"
#include "bench/published_planner/cost_model/layer_profile.h"
#include "bench/published_planner/cost_model/schedule.h"
#include "common/job/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/dispatch/costs/analytic_costs.h"

namespace harmony::published {

struct ImportedModel {
  model::ModelSpec model;
  job::JobSpec job;
  plan::MachineSpec machine;
  dispatch::CostFactory costs;
};

// A step of `minibatch` samples on `devices` GPUs of `machine`; its links are shared by all
// machine.gpus of them. Times and sizes are there for the microbatches that divide the minibatch
// and that the profile covers; tasks of others fit no device.
absl::StatusOr<ImportedModel> ImportModel(const LayerProfile& profile, const Machine& machine,
                                          int devices, int64_t minibatch);

// Backward microbatch sizes that a plan can have: divisors of the minibatch that both phases of the
// profile cover, ascending.
std::vector<int64_t> ImportedSizes(const LayerProfile& profile, int64_t minibatch);

}  // namespace harmony::published
