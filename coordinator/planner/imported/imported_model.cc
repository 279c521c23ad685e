#include "coordinator/planner/imported/imported_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony {
namespace {

// Of tasks that were not measured: no device has so much, no plan takes so long.
constexpr Bytes kTooLarge(std::numeric_limits<int64_t>::max() / 16);
constexpr double kTooLong = 1e6;

// Of a minibatch, as far as anything was measured.
std::vector<int64_t> Divisors(const paper::LayerProfile& profile, int64_t minibatch) {
  const int64_t most =
      std::max(profile.forward.microbatch.back(), profile.backward.microbatch.back());
  std::vector<int64_t> result;
  for (int64_t d = 1; d <= std::min(minibatch, most); ++d) {
    if (minibatch % d == 0) result.push_back(d);
  }
  return result;
}

int64_t BlockBytes(const paper::LayerProfile& profile, int layer) {
  // Every layer has a block, of one cache line at least: what has no gradient has nothing to show
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

Phase PhaseOf(const paper::PhaseAt& measured, const std::vector<int64_t>& elsewhere) {
  Phase phase;
  phase.seconds.push_back(0);
  for (size_t l = 0; l < measured.time_s.size(); ++l) {
    phase.seconds.push_back(phase.seconds.back() + measured.time_s[l]);
    phase.transient.push_back(std::max<int64_t>(measured.peak_bytes[l] - elsewhere[l], 0));
  }
  return phase;
}

class ImportedSizesOf : public MeasuredSizes {
 public:
  ImportedSizesOf(std::vector<int64_t> input, std::shared_ptr<const Phases> phases)
      : input_(std::move(input)), phases_(std::move(phases)) {}

  Bytes Boundary(int boundary, int64_t samples) const override {
    return Bytes(input_[boundary] * samples);
  }

  Bytes ForwardWorkspace(LayerRange range, int64_t samples) const override {
    const Phase* phase = Phases::Find(phases_->forward, samples);
    if (phase == nullptr) return kTooLarge;
    int64_t most = 0;
    for (int l = range.first; l <= range.last; ++l) {
      most = std::max(most, phase->transient[l] + Inner(range, l, samples));
    }
    return Bytes(most);
  }

  Bytes BackwardWorkspace(LayerRange range, int64_t samples) const override {
    const Phase* phase = Phases::Find(phases_->backward, samples);
    if (phase == nullptr) return kTooLarge;
    int64_t kept = 0, gradients = 0;
    for (int l = range.first; l <= range.last; ++l) {
      kept += phase->transient[l] + (l > range.first ? input_[l] * samples : 0);
      gradients = std::max(gradients, Inner(range, l, samples));
    }
    return Bytes(kept + gradients);
  }

 private:
  // Of a layer's input and output, what lies between layers of the range.
  int64_t Inner(LayerRange range, int l, int64_t samples) const {
    return ((l > range.first ? input_[l] : 0) + (l < range.last ? input_[l + 1] : 0)) * samples;
  }

  const std::vector<int64_t> input_;  // per sample, by boundary
  const std::shared_ptr<const Phases> phases_;
};

class ImportedCosts : public CostModel {
 public:
  ImportedCosts(std::shared_ptr<const Phases> phases, std::vector<double> updates,
                const paper::Machine& machine, int devices)
      : phases_(std::move(phases)),
        updates_(std::move(updates)),
        host_bytes_per_s_(machine.swap_bytes_per_s / machine.gpus),
        peer_bytes_per_s_(machine.peer_bytes_per_s),
        lanes_(devices) {}

  Nanos Duration(const Command& command) const override {
    double seconds = 0;
    if (const auto* task = std::get_if<ComputeTask>(&command.body)) {
      seconds = ComputeSeconds(*task);
    } else if (const auto* copy = std::get_if<Transfer>(&command.body)) {
      const Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
      seconds = static_cast<double>(copy->size.count()) /
                (lane.kind == LaneKind::kP2P ? peer_bytes_per_s_ : host_bytes_per_s_);
    } else if (const auto& host = std::get<HostTask>(command.body);
               host.kind == HostTaskKind::kUpdate) {
      seconds = updates_[host.block];
    }
    return Nanos::FromSeconds(seconds);
  }

 private:
  double ComputeSeconds(const ComputeTask& task) const {
    const Phase* phase = Phases::Find(
        task.kind == TaskKind::kForward ? phases_->forward : phases_->backward, task.samples);
    if (phase == nullptr) return kTooLong;
    return phase->seconds[task.layers.last + 1] - phase->seconds[task.layers.first];
  }

  const std::shared_ptr<const Phases> phases_;
  const std::vector<double> updates_;
  const double host_bytes_per_s_, peer_bytes_per_s_;
  const LaneTable lanes_;
};

ModelSpec ModelOf(const paper::LayerProfile& profile) {
  ModelSpec model;
  model.config.model_type = profile.model;
  const int layers = profile.layers();
  for (int l = 0; l < layers; ++l) {
    const LayerKind kind = l == 0            ? LayerKind::kEmbedding
                           : l + 1 == layers ? LayerKind::kHead
                                             : LayerKind::kBlock;
    model.layers.push_back({kind, l, {l}});
    ParamBlock block;
    block.name = absl::StrCat("layer.", l);
    block.owner_layer = l;
    block.elements = BlockBytes(profile, l) / 4;
    block.uses = {l};
    TensorSpec tensor;
    tensor.name = block.name;
    tensor.shape = {block.elements};
    tensor.elements = block.elements;
    block.tensors.push_back(std::move(tensor));
    model.blocks.push_back(std::move(block));
    model.uses.push_back({l, l, true});
  }
  return model;
}

absl::StatusOr<Phases> PhasesOf(const paper::LayerProfile& profile,
                                const std::vector<int64_t>& input, int64_t minibatch) {
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
    if (paper::Covers(profile.forward, samples)) {
      HARMONY_ASSIGN_OR_RETURN(const paper::PhaseAt at, At(profile.forward, "fwd", samples));
      phases.forward.emplace(samples, PhaseOf(at, forward));
    }
    if (paper::Covers(profile.backward, samples)) {
      HARMONY_ASSIGN_OR_RETURN(const paper::PhaseAt at, At(profile.backward, "bwd", samples));
      phases.backward.emplace(samples, PhaseOf(at, backward));
    }
  }
  return phases;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportModel(const paper::LayerProfile& profile,
                                          const paper::Machine& machine, int devices,
                                          int64_t minibatch) {
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
  result.model = ModelOf(profile);
  result.model.measured = std::make_shared<const ImportedSizesOf>(std::move(input), phases);
  for (int d = 0; d < devices; ++d) {
    DeviceSpec device;
    device.ordinal = d;
    device.memory = Bytes(machine.memory_bytes);
    result.machine.devices.push_back(device);
  }
  result.costs = [phases, updates = profile.update_time_s, machine, devices](const Plan&) {
    return std::make_unique<ImportedCosts>(phases, updates, machine, devices);
  };
  return result;
}

std::vector<int64_t> ImportedSizes(const paper::LayerProfile& profile, int64_t minibatch) {
  std::vector<int64_t> sizes = Divisors(profile, minibatch);
  sizes.erase(std::remove_if(sizes.begin(), sizes.end(),
                             [&](int64_t size) {
                               return !paper::Covers(profile.forward, size) ||
                                      !paper::Covers(profile.backward, size);
                             }),
              sizes.end());
  return sizes;
}

}  // namespace harmony
