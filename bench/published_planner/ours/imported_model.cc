#include "bench/published_planner/ours/imported_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"

namespace harmony::published {
namespace {

// Of tasks that were not measured: no plan takes so long.
constexpr double kTooLong = 1e6;

// Of a minibatch, as far as anything was measured.
std::vector<int64_t> Divisors(const LayerProfile& profile, int64_t minibatch) {
  const int64_t most =
      std::max(profile.forward.microbatch.back(), profile.backward.microbatch.back());
  std::vector<int64_t> result;
  for (int64_t d = 1; d <= std::min(minibatch, most); ++d) {
    if (minibatch % d == 0) result.push_back(d);
  }
  return result;
}

int64_t BlockBytes(const LayerProfile& profile, int layer) {
  // Every layer has a block, of one slot at least: what has no gradient has nothing to show
  // that its backward has run.
  const int64_t bytes = profile.param_bytes[layer] + profile.buffer_bytes[layer];
  return Bytes(std::max<int64_t>(bytes, 1)).AlignUp(kSlotAlignment).count();
}

// One phase at one microbatch size.
struct Phase {
  std::vector<double> seconds;     // of layers [0, i), by i
  std::vector<int64_t> transient;  // by layer: beside weights, gradients and boundary tensors
};

// By microbatch size.
struct Phases {
  std::map<int64_t, Phase> forward, backward;

  static const Phase* Find(const std::map<int64_t, Phase>& phases, int64_t samples) {
    const auto at = phases.find(samples);
    return at == phases.end() ? nullptr : &at->second;
  }
};

Phase PhaseOf(const PhaseAt& measured, const std::vector<int64_t>& elsewhere) {
  Phase phase;
  phase.seconds.push_back(0);
  for (size_t l = 0; l < measured.time_s.size(); ++l) {
    phase.seconds.push_back(phase.seconds.back() + measured.time_s[l]);
    phase.transient.push_back(std::max<int64_t>(measured.peak_bytes[l] - elsewhere[l], 0));
  }
  return phase;
}

class ImportedCosts : public dispatch::CostModel {
 public:
  ImportedCosts(std::shared_ptr<const Phases> phases, std::vector<double> updates,
                const Machine& machine, int devices)
      : phases_(std::move(phases)),
        updates_(std::move(updates)),
        host_bytes_per_s_(machine.swap_bytes_per_s / machine.gpus),
        peer_bytes_per_s_(machine.peer_bytes_per_s),
        lanes_(devices) {}

  Nanos Duration(const command::Command& command) const override {
    double seconds = 0;
    if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
      seconds = ComputeSeconds(*task);
    } else if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
      const command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
      seconds = static_cast<double>(copy->size.count()) /
                (lane.kind == command::LaneKind::kP2P ? peer_bytes_per_s_ : host_bytes_per_s_);
    } else if (const auto& host = std::get<command::HostTask>(command.body);
               host.kind == command::HostTaskKind::kUpdate) {
      seconds = updates_[host.block];
    }
    return Nanos::FromSeconds(seconds);
  }

 private:
  double ComputeSeconds(const command::ComputeTask& task) const {
    const Phase* phase = Phases::Find(
        task.kind == command::TaskKind::kForward ? phases_->forward : phases_->backward,
        task.samples);
    if (phase == nullptr) return kTooLong;
    const double seconds = SecondsOf(*phase, task.layers);
    if (!task.kept || task.kind == command::TaskKind::kForward) return seconds;
    // What was measured has the recompute in it.
    const Phase* forward = Phases::Find(phases_->forward, task.samples);
    return forward == nullptr ? kTooLong : seconds - SecondsOf(*forward, task.layers);
  }

  static double SecondsOf(const Phase& phase, model::LayerRange layers) {
    return phase.seconds[layers.last + 1] - phase.seconds[layers.first];
  }

  const std::shared_ptr<const Phases> phases_;
  const std::vector<double> updates_;
  const double host_bytes_per_s_, peer_bytes_per_s_;
  const command::LaneTable lanes_;
};

// The transient bytes of a layer, by the microbatch sizes that were measured.
model::BytesBySamples TableOf(const std::map<int64_t, Phase>& phases, int layer) {
  model::BytesBySamples sizes;
  for (const auto& [samples, phase] : phases) {
    sizes.table.emplace_back(samples, Bytes(phase.transient[layer]));
  }
  return sizes;
}

// What autograd keeps of a sample of a layer: what a backward has beyond a forward, at the size
// where that is least. The temporaries of both are taken to be equal; where a backward has more of
// them, too much counts as kept, and where less, too little. Nothing, where no size is measured in
// both.
Bytes SavedPerSample(const Phases& phases, int layer) {
  Bytes least(std::numeric_limits<int64_t>::max());
  for (const auto& [samples, backward] : phases.backward) {
    const Phase* forward = Phases::Find(phases.forward, samples);
    if (forward == nullptr) continue;
    const int64_t beyond = backward.transient[layer] - forward->transient[layer];
    least = std::min(least, Bytes(std::max<int64_t>(beyond, 0) / samples));
  }
  return least == Bytes(std::numeric_limits<int64_t>::max()) ? Bytes() : least;
}

// The same of so many samples as were measured.
model::BytesBySamples SavedTable(const Phases& phases, Bytes per_sample) {
  model::BytesBySamples sizes;
  for (const auto& [samples, phase] : phases.backward) {
    sizes.table.emplace_back(samples, model::TimesSaturated(per_sample, samples));
  }
  return sizes;
}

// Less what of it is kept elsewhere.
model::BytesBySamples Less(model::BytesBySamples whole, const model::BytesBySamples& kept) {
  for (size_t i = 0; i < whole.table.size(); ++i) {
    Bytes& size = whole.table[i].second;
    size -= std::min(size, kept.table[i].second);
  }
  return whole;
}

// Every layer has a cost of its own. What a forward leaves for its backward is one tensor; a
// forward that leaves it elsewhere may hold as much beside it as any forward.
model::LayerCost CostOf(const Phases& phases, int layer, bool last) {
  model::LayerCost cost;
  cost.name = cost.work = absl::StrCat("layer ", layer);
  model::LayerWorkspace& workspace = cost.bound;
  workspace.forward = workspace.keeping_forward = TableOf(phases.forward, layer);
  workspace.kept = workspace.backward = workspace.kept_backward = TableOf(phases.backward, layer);
  if (!last) {
    cost.recompute = model::Recompute::kUnlessKept;
    cost.saved_per_sample = SavedPerSample(phases, layer);
    cost.kept_tensors = {model::BytesBySamples::Of(cost.saved_per_sample)};
    workspace.kept = SavedTable(phases, cost.saved_per_sample);
    workspace.kept_backward = Less(workspace.backward, workspace.kept);
  }
  cost.expected = cost.bound;
  return cost;
}

model::ModelSpec ModelOf(const LayerProfile& profile, const std::vector<int64_t>& input,
                         const Phases& phases) {
  const auto bytes = [](const char* name, int64_t per_sample) {
    return model::SampleTensor{name, DType::kU8, {per_sample}};
  };
  const auto numbers = [](const char* name, int64_t per_sample) {
    return model::SampleTensor{name, DType::kF32, {per_sample / SizeOf(DType::kF32).count()}};
  };
  model::ModelSpec model;
  model.name = profile.model;
  const int layers = profile.layers();
  const int64_t sample = std::max<int64_t>(input[0], 1);  // the profile tells no target's size
  model.inputs = {{bytes("sample", sample), 0, {0}}, {bytes("target", sample), 0, {layers - 1}}};
  for (int l = 0; l < layers; ++l) {
    model.layers.push_back({l, l, {}});
    model.costs.push_back(CostOf(phases, l, l + 1 == layers));
    model.boundaries.emplace_back();
    if (l > 0) model.boundaries.back().push_back(numbers("output", input[l]));
    model::ParamBlock block;
    block.name = absl::StrCat("layer.", l);
    block.owner_layer = l;
    model::TensorSpec tensor;
    tensor.name = block.name;
    tensor.shape = {BlockBytes(profile, l) / SizeOf(tensor.weight.dtype).count()};
    model::AddTensor(block, std::move(tensor));
    model::AddReference(model, l, model::AddBlock(model, std::move(block)));
  }
  model.boundaries.emplace_back();
  return model;
}

absl::StatusOr<Phases> PhasesOf(const LayerProfile& profile, const std::vector<int64_t>& input,
                                int64_t minibatch) {
  Phases phases;
  const int layers = profile.layers();
  for (int64_t samples : Divisors(profile, minibatch)) {
    std::vector<int64_t> forward(layers), backward(layers);
    for (int l = 0; l < layers; ++l) {
      const int64_t block = BlockBytes(profile, l), in = input[l] * samples;
      const int64_t out = l + 1 < layers ? input[l + 1] * samples : 0;
      forward[l] = block + in + out;
      // The first layer's input has no gradient.
      backward[l] = 2 * block + (l > 0 ? 2 : 1) * in + out;
    }
    if (Covers(profile.forward, samples)) {
      HARMONY_ASSIGN_OR_RETURN(const PhaseAt at, At(profile.forward, "fwd", samples));
      phases.forward.emplace(samples, PhaseOf(at, forward));
    }
    if (Covers(profile.backward, samples)) {
      HARMONY_ASSIGN_OR_RETURN(const PhaseAt at, At(profile.backward, "bwd", samples));
      phases.backward.emplace(samples, PhaseOf(at, backward));
    }
  }
  return phases;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportModel(const LayerProfile& profile, const Machine& machine,
                                          int devices, int64_t minibatch) {
  HARMONY_RETURN_IF_ERROR(CheckProfile(profile));
  HARMONY_RETURN_IF_ERROR(CheckMachine(machine));
  if (profile.layers() < 2) {
    return absl::InvalidArgumentError("layers: our planner needs two, the last one is the loss");
  }
  if (minibatch < 1 || ImportedSizes(profile, minibatch).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "minibatch is ", minibatch, ": no divisor of it is a microbatch size of the profile"));
  }
  std::vector<int64_t> input;
  for (int64_t bytes : profile.input_bytes_per_sample) {
    input.push_back(Bytes(bytes).AlignUp(kSlotAlignment).count());
  }
  ImportedModel result;
  HARMONY_ASSIGN_OR_RETURN(Phases measured, PhasesOf(profile, input, minibatch));
  const auto phases = std::make_shared<const Phases>(std::move(measured));
  result.job.global_batch_size = minibatch;
  // The sample, in the words that tokens have.
  result.job.sequence_length = std::max<int64_t>(input[0] / 4, 1);
  result.model = ModelOf(profile, input, *phases);
  for (int d = 0; d < devices; ++d) {
    plan::DeviceSpec device;
    device.ordinal = d;
    device.memory = Bytes(machine.memory_bytes);
    result.machine.devices.push_back(device);
  }
  result.costs = [phases, updates = profile.update_time_s, machine, devices](const plan::Plan&) {
    return std::make_unique<ImportedCosts>(phases, updates, machine, devices);
  };
  return result;
}

std::vector<int64_t> ImportedSizes(const LayerProfile& profile, int64_t minibatch) {
  std::vector<int64_t> sizes = Divisors(profile, minibatch);
  sizes.erase(std::remove_if(sizes.begin(), sizes.end(),
                             [&](int64_t size) {
                               return !Covers(profile.forward, size) ||
                                      !Covers(profile.backward, size);
                             }),
              sizes.end());
  return sizes;
}

}  // namespace harmony::published
