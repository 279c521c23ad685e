// The description of an exported model: one source of it among others.

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/exported_model.h"

namespace harmony::model {
namespace {

// Of one sample: the part of a tensor of which the task has so many.
SampleTensor SampleOf(const ExportedTensor& tensor) {
  // The whole is a multiple of the samples, whichever extent says so, and lies as it is.
  SampleTensor sample{tensor.name, tensor.dtype, {}};
  for (const Extent& extent : tensor.shape) {
    if (!extent.per_sample || extent.size != 1) sample.shape.push_back(extent.size.number());
  }
  return sample;
}

// By value, the last layer that reads it.
std::vector<int> LastReaders(const ExportedModel& exported) {
  std::vector<int> last(exported.values.size(), -1);
  for (size_t layer = 0; layer < exported.layers.size(); ++layer) {
    for (const LayerSlot& slot : exported.layers[layer].slots) {
      if (slot.kind == SlotKind::kValue) {
        last[static_cast<size_t>(slot.index)] = static_cast<int>(layer);
      }
    }
  }
  return last;
}

bool HasStatistics(const ExportedModel& exported, const ExportedLayer& layer) {
  return std::any_of(layer.slots.begin(), layer.slots.end(), [&](const LayerSlot& slot) {
    return slot.kind == SlotKind::kParameter &&
           exported.parameters[static_cast<size_t>(slot.index)].role == TensorRole::kStatistic;
  });
}

BytesBySamples SizesOf(const std::vector<ExportedGraph::Phase>& exported) {
  BytesBySamples sizes;
  for (const ExportedGraph::Phase& phase : exported) {
    BytesBySamples::Phase& size = sizes.phases.emplace_back();
    size.per_sample = Bytes(phase.per_sample.number());
    size.fixed = Bytes(phase.fixed.number());
  }
  return sizes;
}

// What is alive in a phase, as the export counted it, is what a task is expected to hold. The bound
// has room for holes between allocations and for what operations take for themselves: the backward
// of a batch normalisation was seen to take 8 MiB for a gradient of 4, a convolution likewise, and
// small ones some hundred KiB whatever their size.
BytesBySamples WithRoom(BytesBySamples sizes) {
  for (BytesBySamples::Phase& phase : sizes.phases) {
    phase.per_sample = phase.per_sample * 2;
    phase.fixed = phase.fixed * 2 + MiB(2);
  }
  return sizes;
}

// The larger of two at every number of samples.
BytesBySamples Larger(BytesBySamples a, const BytesBySamples& b) {
  a.phases.insert(a.phases.end(), b.phases.begin(), b.phases.end());
  return a;
}

// The place that `saving` leaves for one tensor.
BytesBySamples SavedSize(const ExportedTensor& tensor) {
  Bytes bytes = SizeOf(tensor.dtype);
  bool grows = false;
  for (const Extent& extent : tensor.shape) {
    bytes = TimesSaturated(bytes, extent.size.number());
    grows |= extent.per_sample;
  }
  return grows ? BytesBySamples::Of(bytes) : BytesBySamples::Of(Bytes(), bytes);
}

LayerCost CostOf(const ExportedModel& exported, const ExportedLayer& layer, bool first, bool last) {
  const ExportedGraph& graph = exported.graphs[static_cast<size_t>(layer.graph)];
  LayerCost cost;
  cost.name = layer.name;
  cost.work = absl::StrCat("graph ", graph.digest, first ? " (first)" : "");
  // Otherwise the graph has it in its shapes.
  const SequenceLengths& lengths = exported.sequence_length;
  if (lengths.free) absl::StrAppend(&cost.work, ", sequences of ", lengths.most);
  cost.forward_flops = static_cast<double>(graph.forward_flops.number());
  BytesBySamples::Phase saved;
  const bool keeps = !first && !last && !HasStatistics(exported, layer);
  cost.recompute = keeps ? Recompute::kUnlessKept : last ? Recompute::kNever : Recompute::kAlways;
  for (const ExportedTensor& tensor : graph.saved) {
    const BytesBySamples size = SavedSize(tensor);
    saved.per_sample = SumSaturated(saved.per_sample, size.phases[0].per_sample);
    saved.fixed = SumSaturated(saved.fixed, size.phases[0].fixed);
    if (keeps) cost.kept_tensors.push_back(size);
  }
  cost.saved_per_sample = saved.per_sample;
  LayerWorkspace& expected = cost.expected;
  const ExportedGraph::Workspace& phases = graph.workspace;
  if (last) {
    expected.forward = expected.backward = SizesOf(phases.fused);
  } else {
    expected.forward = SizesOf(phases.forward);
    expected.backward = Larger(SizesOf(phases.saving), SizesOf(phases.backward));
    // The first layer does its forward again within its backward, when all others are done.
    if (!first) expected.kept.phases = {saved};
    expected.keeping_forward = keeps ? SizesOf(phases.keeping) : expected.forward;
    expected.kept_backward = keeps ? SizesOf(phases.kept_backward) : expected.backward;
  }
  cost.bound = {WithRoom(expected.forward), expected.kept, WithRoom(expected.backward),
                WithRoom(expected.keeping_forward), WithRoom(expected.kept_backward)};
  for (const ExportedGraph::Phase& sums : phases.attention_sums) {
    const BytesBySamples size =
        GpuAttentionSums(Bytes(sums.per_sample.number()), Bytes(sums.fixed.number()));
    cost.gpu_sums.phases.push_back(size.phases.front());
  }
  return cost;
}

TensorSpec TensorOf(const ExportedParameter& parameter) {
  TensorSpec tensor;
  tensor.name = parameter.name;
  tensor.aliases = parameter.aliases;
  tensor.shape = parameter.shape;
  tensor.weight.dtype = tensor.gradient.dtype = tensor.moment.dtype = parameter.dtype;
  tensor.role = parameter.role;
  if (tensor.has_master()) tensor.gradient.dtype = tensor.moment.dtype = DType::kF32;
  tensor.weight_decay = parameter.weight_decay;
  tensor.exported = parameter.exported;
  return tensor;
}

// Which parameters make up a block, in its order, and where the layers use it.
struct BlockContents {
  std::string name;
  std::vector<int> parameters;
  std::vector<int> layers;
};

std::vector<BlockContents> BlocksOf(const ExportedModel& exported) {
  std::vector<std::vector<int>> users(exported.parameters.size());
  for (size_t layer = 0; layer < exported.layers.size(); ++layer) {
    for (const LayerSlot& slot : exported.layers[layer].slots) {
      if (slot.kind != SlotKind::kParameter) continue;
      users[static_cast<size_t>(slot.index)].push_back(static_cast<int>(layer));
    }
  }
  std::vector<BlockContents> blocks;
  for (size_t layer = 0; layer < exported.layers.size(); ++layer) {
    BlockContents own{exported.layers[layer].name, {}, {static_cast<int>(layer)}};
    std::vector<BlockContents> shared;
    for (const LayerSlot& slot : exported.layers[layer].slots) {
      if (slot.kind != SlotKind::kParameter) continue;
      const std::vector<int>& by = users[static_cast<size_t>(slot.index)];
      if (by.size() == 1) {
        own.parameters.push_back(slot.index);
      } else if (by[0] == static_cast<int>(layer)) {
        shared.push_back(
            {exported.parameters[static_cast<size_t>(slot.index)].name, {slot.index}, by});
      }
    }
    // Behind each other by role, for those without a gradient come last.
    std::stable_sort(own.parameters.begin(), own.parameters.end(), [&](int a, int b) {
      const auto rank = [&](int index) {
        const TensorRole role = exported.parameters[static_cast<size_t>(index)].role;
        return role == TensorRole::kTrained ? 0 : role == TensorRole::kStatistic ? 1 : 2;
      };
      return rank(a) < rank(b);
    });
    if (!own.parameters.empty()) blocks.push_back(std::move(own));
    for (BlockContents& block : shared) blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace

ExportedTensor ExportedTensor::AtLength(int64_t length) const {
  ExportedTensor tensor = *this;
  for (Extent& extent : tensor.shape) extent.size = extent.size.At(length);
  return tensor;
}

std::vector<int64_t> ExportedTensor::ShapeFor(int64_t samples) const {
  std::vector<int64_t> sizes;
  for (const Extent& extent : shape) {
    sizes.push_back(extent.per_sample ? extent.size.number() * samples : extent.size.number());
  }
  return sizes;
}

ExportedModel ExportedModel::AtLength(int64_t length) const {
  ExportedModel model = *this;
  if (!sequence_length.free) return model;
  model.sequence_length.least = model.sequence_length.most = length;
  const auto choose = [length](LengthPolynomial& amount) { amount = amount.At(length); };
  for (ExportedInput& input : model.inputs) input.tensor = input.tensor.AtLength(length);
  for (ExportedValue& value : model.values) value.tensor = value.tensor.AtLength(length);
  for (ExportedGraph& graph : model.graphs) {
    choose(graph.forward_flops);
    for (ExportedTensor& saved : graph.saved) saved = saved.AtLength(length);
    ExportedGraph::Workspace& sizes = graph.workspace;
    for (auto* phases : {&sizes.forward, &sizes.saving, &sizes.keeping, &sizes.backward,
                         &sizes.kept_backward, &sizes.fused, &sizes.attention_sums}) {
      for (ExportedGraph::Phase& phase : *phases) {
        choose(phase.per_sample);
        choose(phase.fixed);
      }
    }
  }
  choose(model.labels_per_sample);
  if (model.counted_labels.has_value()) choose(model.counted_labels->first);
  return model;
}

ModelSpec BuildModelSpec(const ExportedModel& exported) {
  ModelSpec model;
  model.name = exported.name;
  model.checkpoint_names.write_aliases = true;
  model.labels_per_sample = exported.labels_per_sample.number();
  const int count = static_cast<int>(exported.layers.size());

  if (exported.counted_labels.has_value()) {
    const ExportedCountedLabels& counted = *exported.counted_labels;
    model.counted_labels = {counted.input, counted.first.number(), counted.ignored};
  }

  for (const ExportedInput& input : exported.inputs) {
    model.inputs.push_back({SampleOf(input.tensor), input.values_below, {}, input.source, {}});
  }
  std::map<std::pair<int, bool>, int> costs;  // by graph and whether the layer is the first
  for (int i = 0; i < count; ++i) {
    const ExportedLayer& layer = exported.layers[static_cast<size_t>(i)];
    const auto [cost, fresh] =
        costs.try_emplace({layer.graph, i == 0}, static_cast<int>(model.costs.size()));
    if (fresh) model.costs.push_back(CostOf(exported, layer, i == 0, i + 1 == count));
    model.layers.push_back({i, cost->second, {}});
    for (const LayerSlot& slot : layer.slots) {
      if (slot.kind == SlotKind::kInput) {
        model.inputs[static_cast<size_t>(slot.index)].layers.push_back(i);
      }
    }
  }

  if (model.counted_labels.has_value()) {
    // Whoever reads labels besides the loss has no use for one that does not count.
    BatchInput& labels = model.inputs[static_cast<size_t>(model.counted_labels->input)];
    if (labels.layers == std::vector<int>{count - 1}) {
      labels.ignored = model.counted_labels->ignored;
    }
  }

  model.boundaries.resize(static_cast<size_t>(count) + 1);
  const std::vector<int> last = LastReaders(exported);
  for (int i = 0; i < count; ++i) {
    for (int value : exported.layers[static_cast<size_t>(i)].outputs) {
      const auto index = static_cast<size_t>(value);
      for (int boundary = i + 1; boundary <= last[index]; ++boundary) {
        model.boundaries[static_cast<size_t>(boundary)].push_back(
            SampleOf(exported.values[index].tensor));
      }
    }
  }

  const std::vector<BlockContents> blocks = BlocksOf(exported);
  std::vector<std::vector<int>> used(static_cast<size_t>(count));  // blocks, by layer
  for (const BlockContents& contents : blocks) {
    ParamBlock block;
    block.name = contents.name;
    block.owner_layer = contents.layers[0];
    for (int parameter : contents.parameters) {
      AddTensor(block, TensorOf(exported.parameters[static_cast<size_t>(parameter)]));
    }
    const int number = AddBlock(model, std::move(block));
    for (int layer : contents.layers) used[static_cast<size_t>(layer)].push_back(number);
  }
  for (int layer = 0; layer < count; ++layer) {
    for (int block : used[static_cast<size_t>(layer)]) AddReference(model, layer, block);
  }
  return model;
}

std::vector<ParameterPlace> PlacesOfParameters(const ExportedModel& exported) {
  std::vector<ParameterPlace> places(exported.parameters.size());
  const std::vector<BlockContents> blocks = BlocksOf(exported);
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (size_t i = 0; i < blocks[block].parameters.size(); ++i) {
      places[static_cast<size_t>(blocks[block].parameters[i])] = {static_cast<int>(block),
                                                                  static_cast<int>(i)};
    }
  }
  return places;
}

}  // namespace harmony::model
