#include "common/model/model_sizes.h"

#include <algorithm>

namespace harmony::model {
namespace {

// Of a task, one behind the other.
Bytes StackedBytes(const std::vector<SampleTensor>& tensors, int64_t samples) {
  Bytes end;
  for (const SampleTensor& tensor : tensors) {
    end = SumSaturated(end.AlignUp(kSlotAlignment), TimesSaturated(tensor.per_sample(), samples));
  }
  return end;
}

bool Reads(const BatchInput& input, LayerRange layers) {
  const auto first = std::lower_bound(input.layers.begin(), input.layers.end(), layers.first);
  return first != input.layers.end() && *first <= layers.last;
}

// Boundaries behind the layers of the range but the last, whose tensors a task must find memory
// for: that behind layer 0 is the stash of the group, which is bound, except in the fused task.
LayerRange InnerBoundaries(LayerRange range, bool fused) {
  return {std::max(range.first, fused ? 0 : 1) + 1, range.last};
}

// What the costs of a range come to. Layers that follow each other mostly share a cost, so it is
// evaluated when it is another than the last one's.
class RangeCosts {
 public:
  RangeCosts(const ModelSpec& model, int64_t samples, int threads, bool bound)
      : model_(model), samples_(samples), threads_(threads), bound_(bound) {}

  // The most, over the layers of the range, of one of their sizes and of the tensors on both sides
  // of the layer that lie inside the range.
  Bytes Most(LayerRange range, BytesBySamples LayerWorkspace::*size, LayerRange inner,
             Bytes (*tensors)(const ModelSpec&, int, int64_t)) const {
    OfLayer sizes(*this, size);
    Bytes most, before;
    for (int layer = range.first; layer <= range.last; ++layer) {
      const Bytes behind =
          inner.contains(layer + 1) ? tensors(model_, layer + 1, samples_) : Bytes();
      Bytes own = sizes[layer];
      if (size == &LayerWorkspace::kept_backward) own = SumSaturated(own, GpuSums(layer));
      most = std::max(most, SumSaturated(own, SumSaturated(before, behind)));
      before = behind;
    }
    return most;
  }

  // A task that recomputes: the inputs of all layers and what each keeps, the temporaries of the
  // layer that needs most beyond what it keeps, and the largest gradient on its way down. (While
  // two of these exist, an input of their size has been freed.)
  Bytes Recompute(LayerRange range, LayerRange inner) const {
    OfLayer kept(*this, &LayerWorkspace::kept), backward(*this, &LayerWorkspace::backward);
    Bytes sum, most, gradient;
    for (int layer = range.first; layer <= range.last; ++layer) {
      sum = SumSaturated(sum, kept[layer]);
      most = std::max(most, SumSaturated(backward[layer] - kept[layer], GpuSums(layer)));
      if (inner.contains(layer)) sum = SumSaturated(sum, BoundaryBytes(model_, layer, samples_));
      if (layer == range.first) continue;
      gradient = std::max(gradient, BoundaryGradientBytes(model_, layer, samples_));
    }
    return SumSaturated(sum, SumSaturated(most, gradient));
  }

 private:
  // One of the sizes, asked for layer after layer.
  class OfLayer {
   public:
    OfLayer(const RangeCosts& costs, BytesBySamples LayerWorkspace::*size)
        : costs_(costs), size_(size) {}
    Bytes operator[](int layer) {
      const int cost = costs_.model_.layers[layer].cost;
      if (cost == cost_) return at_;
      cost_ = cost;
      const LayerCost& of = costs_.model_.costs[cost];
      at_ = ((costs_.bound_ ? of.bound : of.expected).*size_).At(costs_.samples_, costs_.threads_);
      return at_;
    }

   private:
    const RangeCosts& costs_;
    BytesBySamples LayerWorkspace::*const size_;
    int cost_ = -1;
    Bytes at_;
  };

  Bytes GpuSums(int layer) const {
    return model_.on_gpus ? model_.cost_of(layer).gpu_sums.At(samples_) : Bytes();
  }

  const ModelSpec& model_;
  const int64_t samples_;
  const int threads_;
  const bool bound_;
};

Bytes WorkspaceIn(const ModelSpec& model, WorkspaceOf task, LayerRange range, int64_t samples,
                  int threads, bool bound) {
  const RangeCosts costs(model, samples, threads, bound);
  switch (task) {
    case WorkspaceOf::kForward:
      return costs.Most(range, &LayerWorkspace::forward, InnerBoundaries(range, false),
                        BoundaryBytes);
    case WorkspaceOf::kBackward:
      return costs.Recompute(range, InnerBoundaries(range, range.last + 1 == model.num_layers()));
    case WorkspaceOf::kKeepingForward:
      return costs.Most(range, &LayerWorkspace::keeping_forward, {}, BoundaryBytes);
    case WorkspaceOf::kKeptBackward:
      return costs.Most(range, &LayerWorkspace::kept_backward, {range.first + 1, range.last},
                        BoundaryGradientBytes);
  }
  return kMostBytes;
}

}  // namespace

Bytes BoundaryBytes(const ModelSpec& model, int boundary, int64_t samples) {
  return StackedBytes(model.boundaries[boundary], samples);
}

Bytes BoundaryGradientBytes(const ModelSpec& model, int boundary, int64_t samples) {
  return BoundaryBytes(model, boundary, samples);
}

Bytes LayerInputBytes(const ModelSpec& model, int layer, int64_t samples) {
  if (layer > 0) return BoundaryBytes(model, layer, samples);
  Bytes sum;
  for (int input : InputsOf(model, {0, 0})) sum += InputBytes(model, input, samples);
  return sum;
}

bool BoundariesSplit(const ModelSpec& model, int64_t microbatch_size) {
  const auto on_slots = [](Bytes slice) { return slice.count() % kSlotAlignment == 0; };
  const bool boundaries =
      std::all_of(model.boundaries.begin(), model.boundaries.end(), [&](const auto& tensors) {
        return tensors.size() <= 1 && on_slots(StackedBytes(tensors, microbatch_size));
      });
  return boundaries &&
         std::all_of(model.inputs.begin(), model.inputs.end(), [&](const BatchInput& input) {
           return !IsFloatingPoint(input.tensor.dtype) ||
                  on_slots(TimesSaturated(input.tensor.per_sample(), microbatch_size));
         });
}

Bytes InputBytes(const ModelSpec& model, int input, int64_t samples) {
  return TimesSaturated(model.inputs[input].tensor.per_sample(), samples);
}

std::vector<int> InputsOf(const ModelSpec& model, LayerRange layers) {
  std::vector<int> inputs;
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    if (Reads(model.inputs[i], layers)) inputs.push_back(static_cast<int>(i));
  }
  return inputs;
}

BatchLayout LayOutBatch(const ModelSpec& model, int64_t samples) {
  BatchLayout layout;
  for (const BatchInput& input : model.inputs) {
    layout.offsets.push_back(layout.size);
    layout.size = SumSaturated(layout.size, TimesSaturated(input.tensor.per_sample(), samples))
                      .AlignUp(kSlotAlignment);
  }
  return layout;
}

namespace {

// Of all blocks that a layer refers to, in one form.
Bytes LayerBytes(const ModelSpec& model, int layer, Bytes ParamBlock::*form) {
  Bytes bytes;
  for (int reference : model.layers[layer].references) {
    bytes += model.blocks[model.references[reference].block].*form;
  }
  return bytes;
}

}  // namespace

Bytes LayerParameterBytes(const ModelSpec& model, int layer) {
  return LayerBytes(model, layer, &ParamBlock::weight_bytes);
}

Bytes LayerAccumulatorBytes(const ModelSpec& model, int layer) {
  return LayerBytes(model, layer, &ParamBlock::accumulator_bytes);
}

double ForwardFlops(const ModelSpec& model, int layer, int64_t samples) {
  return model.cost_of(layer).forward_flops * static_cast<double>(samples);
}

Bytes KeptTensorBytes(const LayerCost& cost, int64_t samples) {
  Bytes sum;
  for (const BytesBySamples& tensor : cost.kept_tensors) {
    sum = SumSaturated(sum, tensor.At(samples).AlignUp(kSlotAlignment));
  }
  return sum;
}

Bytes KeptActivationBytes(const ModelSpec& model, LayerRange range, int64_t samples) {
  std::vector<Bytes> kept(model.costs.size(), Bytes(-1));
  const LayerRange inner = InnerBoundaries(range, /*fused=*/false);
  Bytes sum;
  for (int layer = std::max(range.first, 1); layer <= range.last; ++layer) {
    Bytes& own = kept[model.layers[layer].cost];
    if (own.count() < 0) own = KeptTensorBytes(model.cost_of(layer), samples);
    sum = SumSaturated(sum, own);
    if (!inner.contains(layer)) continue;
    sum = SumSaturated(sum, BoundaryBytes(model, layer, samples).AlignUp(kSlotAlignment));
  }
  return sum;
}

Bytes WorkspaceBound(const ModelSpec& model, WorkspaceOf task, LayerRange range, int64_t samples) {
  return WorkspaceIn(model, task, range, samples, /*threads=*/1, /*bound=*/true);
}

Bytes WorkspacePeak(const ModelSpec& model, WorkspaceOf task, LayerRange range, int64_t samples,
                    int threads) {
  return WorkspaceIn(model, task, range, samples, threads, /*bound=*/false);
}

Footprint ComputeFootprint(const ModelSpec& model, int64_t global_batch, int optimizer_moments) {
  Footprint footprint;
  for (const ParamBlock& block : model.blocks) {
    footprint.weights += block.weight_bytes;
    footprint.gradients += block.accumulator_bytes;
    footprint.masters += block.master_bytes();
    footprint.optimizer_state += block.moment_bytes * optimizer_moments;
  }
  for (const LayerSpec& layer : model.layers) {
    const Bytes saved = TimesSaturated(model.costs[layer.cost].saved_per_sample, global_batch);
    const Bytes input = BoundaryBytes(model, layer.index, global_batch);
    footprint.activations = SumSaturated(footprint.activations, SumSaturated(saved, input));
  }
  return footprint;
}

bool HasMasters(const ModelSpec& model) {
  return std::any_of(model.blocks.begin(), model.blocks.end(),
                     [](const ParamBlock& block) { return block.has_masters; });
}

const char* PrecisionName(const ModelSpec& model) { return HasMasters(model) ? "bf16" : "fp32"; }

}  // namespace harmony::model
