// Bounds::OfAnyPlan: what no plan can do without.

#include <algorithm>
#include <limits>

#include "common/model/model_sizes.h"
#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {
namespace {

// The least time in which machines that take cost(item, machine) can share items out among them,
// even in parts: for all weights of the machines that add up to 1, no schedule is shorter than the
// sum of min over machines of weight * cost.
template <typename Cost>
double Shared(int items, int machines, const Cost& cost) {
  std::vector<double> weights(machines, 0);
  double sum = 0;
  for (int d = 0; d < machines; ++d) {
    for (int i = 0; i < items; ++i) weights[d] += cost(i, d);
    if (weights[d] <= 0) return 0;
    weights[d] = 1 / weights[d];
    sum += weights[d];
  }
  double total = 0;
  for (int i = 0; i < items; ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (int d = 0; d < machines; ++d) least = std::min(least, weights[d] / sum * cost(i, d));
    total += least;
  }
  return total;
}

}  // namespace

// Of a layer in a task of `task_microbatches` microbatches.
Nanos Bounds::Marginal(command::TaskKind kind, int layer, int device, int task_microbatches,
                       bool kept) {
  const auto of = [&](model::LayerRange layers) {
    return costs_.Compute(kind, layers, device, false, false, task_microbatches, kept);
  };
  const Nanos one = of({layer, layer}), more = of({layer - 1, layer}) - of({layer - 1, layer - 1});
  return std::max(Nanos(0), std::min(one, more));
}

// Layers whose activations the devices have room for, at the most, were they all as small as the
// smallest; of all microbatches that run there. So it does not matter which of them these are.
int64_t Bounds::RoomForActivations(const plan::Plan& shape) const {
  Bytes block = model::kMostBytes;
  for (const model::LayerCost& cost : model_.costs) {
    if (cost.recompute != model::Recompute::kUnlessKept) continue;
    block = std::min(block, model::KeptTensorBytes(cost, shape.microbatch_size));
  }
  if (block == Bytes()) return model_.num_layers();
  double memory = 0;
  for (const plan::DevicePlan& device : shape.devices) {
    memory += static_cast<double>(device.memory.count());
  }
  return static_cast<int64_t>(memory / static_cast<double>(block.count()) / shape.num_microbatches);
}

void Bounds::FindMarginals(const plan::Plan& shape, const std::vector<int>& forward_task_sizes) {
  const int64_t room = RoomForActivations(shape);
  marginal_.assign(model_.num_layers(), std::vector<Nanos>(costs_.num_devices()));
  for (int layer = 1; layer + 1 < model_.num_layers(); ++layer) {
    for (int d = 0; d < costs_.num_devices(); ++d) {
      Nanos least(std::numeric_limits<int64_t>::max());
      for (int task_microbatches : forward_task_sizes) {
        const Nanos all = Marginal(command::TaskKind::kForward, layer, d, task_microbatches, false);
        least = std::min(least, Nanos(all.count() / task_microbatches));
      }
      Nanos& sum = marginal_[layer][d];
      sum = least + Marginal(command::TaskKind::kBackward, layer, d, 1, false);
      if (layer > room) continue;
      sum = std::min(sum, Marginal(command::TaskKind::kForward, layer, d, 1, true) +
                              Marginal(command::TaskKind::kBackward, layer, d, 1, true));
    }
  }
}

// The least time of work that devices do, whichever of them: where all share cores, so many do
// some at a time.
Nanos Bounds::OnSharedCores(Nanos work) const {
  const plan::CoreSharing cores = costs_.model().Cores();
  if (static_cast<int>(cores.devices.size()) < costs_.num_devices()) return Nanos();
  return Nanos(work.count() / cores.at_once);
}

// With layers from `first` on in the fused group.
Nanos Bounds::FusedFrom(const plan::Plan& shape, DeviceSets sets, int first) {
  const int devices = costs_.num_devices(), last = model_.num_layers() - 1;
  std::vector<std::vector<double>> work(first + 1, std::vector<double>(devices));
  Nanos fused, chain;  // of one microbatch
  for (int item = 0; item <= first; ++item) {
    Nanos least(std::numeric_limits<int64_t>::max());
    for (int d = 0; d < devices; ++d) {
      const Nanos one = item < first
                            ? marginal_[item][d]
                            : costs_.Compute(command::TaskKind::kForwardBackward, {first, last}, d);
      work[item][d] = static_cast<double>(one.count()) * shape.num_microbatches;
      least = std::min(least, one);
    }
    chain += least;
    fused = least;
  }
  const double compute = Shared(first + 1, devices, [&](int i, int d) { return work[i][d]; });
  // One device runs all of the fused group, or several run parts of it.
  const int least = sets == DeviceSets::kSingle ? shape.num_microbatches : 1;
  return std::max({Nanos(static_cast<int64_t>(compute)), fused * least,
                   OnSharedCores(chain * shape.num_microbatches), chain + costs_.Update(0)});
}

// The same where each device that has a shard runs all layers.
Nanos Bounds::ShardsFusedFrom(const plan::Plan& shape, int first) {
  const int last = model_.num_layers() - 1;
  Nanos compute, chain, work;
  const plan::DeviceSet all = AllDevices(shape);
  const int microbatches = shape.num_microbatches / all.size();  // of each
  for (int d : all) {
    Nanos one = costs_.Compute(command::TaskKind::kForwardBackward, {first, last}, d);
    for (int layer = 0; layer < first; ++layer) one += marginal_[layer][d];
    compute = std::max(compute, one * microbatches);
    chain = std::max(chain, one + costs_.Update(0));
    work += one * microbatches;
  }
  return std::max({compute, chain, OnSharedCores(work)});
}

// Weights come in once at least, gradients go out once a reference; weights of each shard,
// gradients of the last one. (Weights that another device may pass on take no time that is certain,
// nor do gradients of other shards, which may be added up among the devices.)
Nanos Bounds::CopiesOfAnyPlan(const plan::Plan& shape, DeviceSets sets) {
  const int devices = costs_.num_devices();
  const int blocks = static_cast<int>(model_.blocks.size());
  const int references = static_cast<int>(model_.references.size());
  Nanos most;
  if (sets == DeviceSets::kAll) {
    const plan::LayerGroup group{{}, AllDevices(shape)};
    for (int reference = 0; reference < references; ++reference) {
      most += costs_.GradientOut(reference, group.devices.size() - 1);
    }
    for (int d = 0; d < group.devices.size(); ++d) {
      Nanos in;
      for (int block = 0; block < blocks && plan::WeightPeer(shape, group, d) < 0; ++block) {
        in += costs_.Load(block, d);
      }
      most = std::max(most, in);
    }
    return most;
  }
  const auto each = [&](int count, auto duration) {
    return Nanos(static_cast<int64_t>(Shared(count, devices, [&](int i, int d) {
      return static_cast<double>(duration(i, d).count());
    })));
  };
  most = each(blocks, [&](int block, int d) { return costs_.Load(block, d); });
  return std::max(most, each(references, [&](int reference, int d) {
                    return costs_.GradientOut(reference, d);
                  }));
}

Nanos Bounds::OfAnyPlan(const plan::Plan& shape, DeviceSets sets,
                        const std::vector<int>& forward_task_sizes) {
  const int layers = model_.num_layers();
  const bool all = sets == DeviceSets::kAll;
  FindMarginals(shape, forward_task_sizes);
  Bytes largest;
  for (const plan::DevicePlan& device : shape.devices) largest = std::max(largest, device.memory);
  Nanos best(std::numeric_limits<int64_t>::max());
  Bytes fused;
  for (int first = layers - 1; first >= 0; --first) {
    fused += model::LayerParameterBytes(model_, first);
    // Gradients are there for each reference, weights for each block; this is no more than either.
    const bool fits = fused + model::WorkspaceBound(model_, model::WorkspaceOf::kBackward,
                                                    {first, layers - 1}, shape.microbatch_size) <=
                      largest;
    if (!fits && first < layers - 1) break;
    best = std::min(best, all ? ShardsFusedFrom(shape, first) : FusedFrom(shape, sets, first));
  }
  best = std::max(best, CopiesOfAnyPlan(shape, sets));
  Nanos host = costs_.StepScalars();
  for (size_t block = 0; block < model_.blocks.size(); ++block) {
    host += costs_.Update(static_cast<int>(block));
    if (shape.clip) host += costs_.Norm(static_cast<int>(block));
  }
  return std::max(best, host);
}

}  // namespace harmony::planner
