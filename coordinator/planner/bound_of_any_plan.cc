// Bounds::OfAnyPlan: what no plan can do without.

#include <algorithm>
#include <limits>

#include "common/model/model_sizes.h"
#include "coordinator/planner/bounds.h"

namespace harmony {
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

// Of a layer in a task of `span` microbatches.
Nanos Bounds::Marginal(TaskKind kind, int layer, int device, int span, bool kept) {
  const auto of = [&](LayerRange layers) {
    return costs_.Compute(kind, layers, device, false, false, span, kept);
  };
  const Nanos one = of({layer, layer}), more = of({layer - 1, layer}) - of({layer - 1, layer - 1});
  return std::max(Nanos(0), std::min(one, more));
}

// Layers whose activations the devices have room for, at the most, were they all as small as the
// smallest; of all microbatches that run there. So it does not matter which of them these are.
int64_t Bounds::RoomForActivations(const Plan& shape) const {
  Bytes block = kMostBytes;
  for (const LayerCost& cost : model_.costs) {
    if (cost.kept_tensors.empty()) continue;
    block = std::min(block, KeptTensorBytes(cost, shape.microbatch_size));
  }
  if (block == Bytes()) return model_.num_layers();
  int64_t sum = 0, most = 0;
  for (const DevicePlan& device : shape.devices) {
    const auto room =
        static_cast<int64_t>(static_cast<double>(device.memory.count()) /
                             static_cast<double>(block.count()) / shape.share_microbatches());
    sum += room;
    most = std::max(most, room);
  }
  return shape.mode == ParallelMode::kData ? most : sum;
}

void Bounds::FindMarginals(const Plan& shape, const std::vector<int>& spans) {
  const int64_t room = RoomForActivations(shape);
  marginal_.assign(model_.num_layers(), std::vector<Nanos>(costs_.num_devices()));
  for (int layer = 1; layer + 1 < model_.num_layers(); ++layer) {
    for (int d = 0; d < costs_.num_devices(); ++d) {
      Nanos least(std::numeric_limits<int64_t>::max());
      for (int span : spans) {
        const Nanos all = Marginal(TaskKind::kForward, layer, d, span, false);
        least = std::min(least, Nanos(all.count() / span));
      }
      Nanos& sum = marginal_[layer][d];
      sum = least + Marginal(TaskKind::kBackward, layer, d, 1, false);
      if (layer > room) continue;
      sum = std::min(sum, Marginal(TaskKind::kForward, layer, d, 1, true) +
                              Marginal(TaskKind::kBackward, layer, d, 1, true));
    }
  }
}

// With layers from `first` on in the fused group.
Nanos Bounds::FusedFrom(const Plan& shape, int first) {
  const int devices = costs_.num_devices(), last = model_.num_layers() - 1;
  std::vector<std::vector<double>> work(first + 1, std::vector<double>(devices));
  Nanos fused, chain;
  for (int item = 0; item <= first; ++item) {
    Nanos least(std::numeric_limits<int64_t>::max());
    for (int d = 0; d < devices; ++d) {
      const Nanos one = item < first ? marginal_[item][d]
                                     : costs_.Compute(TaskKind::kForwardBackward, {first, last}, d);
      work[item][d] = static_cast<double>(one.count()) * shape.num_microbatches;
      least = std::min(least, one);
    }
    chain += least;
    fused = least;
  }
  const double compute = Shared(first + 1, devices, [&](int i, int d) { return work[i][d]; });
  return std::max({Nanos(static_cast<int64_t>(compute)), fused * shape.num_microbatches,
                   chain + costs_.Update(0)});
}

// The same where each device that has a share runs all layers.
Nanos Bounds::SharesFusedFrom(const Plan& shape, int first) {
  const int last = model_.num_layers() - 1;
  Nanos compute, chain;
  for (int d = 0; d < shape.num_shares(); ++d) {
    Nanos one = costs_.Compute(TaskKind::kForwardBackward, {first, last}, d);
    for (int layer = 0; layer < first; ++layer) one += marginal_[layer][d];
    compute = std::max(compute, one * shape.share_microbatches());
    chain = std::max(chain, one + costs_.Update(0));
  }
  return std::max(compute, chain);
}

// Weights come in once at least, gradients go out once a use; of each share, of each replica.
Nanos Bounds::CopiesOfAnyPlan(const Plan& shape) {
  const int devices = costs_.num_devices();
  const int blocks = static_cast<int>(model_.blocks.size());
  const int uses = static_cast<int>(model_.uses.size());
  Nanos most;
  if (shape.mode == ParallelMode::kData) {
    const int replicas = shape.replicas / shape.num_shares();
    for (int d = 0; d < shape.num_shares(); ++d) {
      Nanos in, out;
      for (int block = 0; block < blocks; ++block) in += costs_.Load(block, d);
      for (int use = 0; use < uses; ++use) out += costs_.GradientOut(use, d) * replicas;
      most = std::max({most, in, out});
    }
    return most;
  }
  const auto each = [&](int count, auto duration) {
    return Nanos(static_cast<int64_t>(Shared(count, devices, [&](int i, int d) {
      return static_cast<double>(duration(i, d).count());
    })));
  };
  most = each(blocks, [&](int block, int d) { return costs_.Load(block, d); });
  return std::max(most, each(uses, [&](int use, int d) {
                    return costs_.GradientOut(use, d) * shape.replicas;
                  }));
}

Nanos Bounds::OfAnyPlan(const Plan& shape, const std::vector<int>& spans) {
  const int layers = model_.num_layers();
  const bool data = shape.mode == ParallelMode::kData;
  FindMarginals(shape, spans);
  Bytes largest;
  for (const DevicePlan& device : shape.devices) largest = std::max(largest, device.memory);
  Nanos best(std::numeric_limits<int64_t>::max());
  Bytes fused;
  for (int first = layers - 1; first >= 0; --first) {
    fused += LayerParameterBytes(model_, first);
    // Gradients are there for each use, weights for each block; this is no more than either.
    const bool fits = fused + WorkspaceBound(model_, WorkspaceOf::kBackward, {first, layers - 1},
                                             shape.microbatch_size) <=
                      largest;
    if (!fits && first < layers - 1) break;
    best = std::min(best, data ? SharesFusedFrom(shape, first) : FusedFrom(shape, first));
  }
  best = std::max(best, CopiesOfAnyPlan(shape));
  Nanos host = costs_.Host(HostTaskKind::kStepScalars, -1);
  for (size_t block = 0; block < model_.blocks.size(); ++block) {
    host += costs_.Update(static_cast<int>(block));
    if (shape.clip) host += costs_.Host(HostTaskKind::kNorm, static_cast<int>(block));
  }
  return std::max(best, host);
}

}  // namespace harmony
