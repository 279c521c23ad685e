#include "common/profile/profile.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"

namespace harmony::profile {
namespace {

constexpr int64_t kQuickTokens = 512;
constexpr int64_t kHostElements = 16 << 20, kHostBlockElements = 8 << 20;
constexpr int64_t kLinkGranule = 4096;

std::string ShapeText(const model::ModelSpec& model, const model::LayerSpec& layer) {
  std::string text = model.costs[layer.cost].work;
  for (int reference : layer.references) {
    const model::ParameterReference& used = model.references[reference];
    absl::StrAppend(&text, used.needed_in_backward ? " |" : " -");
    for (const model::TensorSpec& tensor : model.blocks[used.block].tensors) {
      absl::StrAppend(&text, " ", ToString(tensor.weight.dtype), ":",
                      absl::StrJoin(tensor.shape, "x"));
    }
  }
  return text;
}

// FNV-1a: of texts of our own, so chance is all it has to withstand.
uint64_t Digest(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// For people.
std::string DescribeModel(const model::ModelSpec& model) {
  return absl::StrCat(model.name, ", ", model.parameter_count(), " parameters, ",
                      model::PrecisionName(model));
}

absl::Status Differs(absl::string_view where, absl::string_view field, absl::string_view found,
                     absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", field, ": the profile is of ", found, ", this is ", wanted,
                   "; make one with `harmony profile` for this job and these devices"));
}

absl::Status CheckLayer(const LayerProfile& layer, absl::string_view where,
                        const std::string& field, const model::ModelSpec& model) {
  const int index = layer.layers.front();
  const std::string& kind = model.cost_of(index).name;
  if (layer.kind != kind) return Differs(where, field + ".kind", layer.kind, kind);
  const Bytes parameters = model::LayerParameterBytes(model, index);
  if (layer.parameter_bytes != parameters) {
    return Differs(where, field + ".parameter_bytes",
                   absl::StrCat(layer.parameter_bytes.count(), " bytes"),
                   absl::StrCat("a layer with ", parameters.count()));
  }
  const Bytes input = model::LayerInputBytes(model, index, 1);
  if (layer.input_bytes != input) {
    return Differs(where, field + ".input_bytes_per_sample",
                   absl::StrCat(layer.input_bytes.count(), " bytes"),
                   absl::StrCat("a layer with ", input.count()));
  }
  for (size_t i = 0; i < layer.sizes.size(); ++i) {
    if (RunsFused(model, index) || layer.sizes[i].forward) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", field, ".sizes[", i, "]: forward_s is missing"));
  }
  return absl::OkStatus();
}

}  // namespace

Measured MeasuredOf(std::vector<double>& repeats) {
  std::sort(repeats.begin(), repeats.end());
  const size_t middle = repeats.size() / 2;
  const double median =
      repeats.size() % 2 == 1 ? repeats[middle] : (repeats[middle - 1] + repeats[middle]) / 2;
  return {median, repeats.front(), repeats.back()};
}

std::vector<LayerShape> DistinctLayers(const model::ModelSpec& model) {
  std::vector<LayerShape> shapes;
  std::map<std::string, size_t> known;
  for (const model::LayerSpec& layer : model.layers) {
    const auto [at, added] = known.emplace(ShapeText(model, layer), shapes.size());
    if (added) shapes.push_back({model.costs[layer.cost].name, {}});
    shapes[at->second].layers.push_back(layer.index);
  }
  return shapes;
}

bool Recomputes(const model::ModelSpec& model, int layer) {
  return layer > 0 && model.cost_of(layer).recompute != model::Recompute::kNever;
}

void NoteRecompute(const model::ModelSpec& model, int layer, LayerSizeProfile& size) {
  if (model.cost_of(layer).recompute != model::Recompute::kAlways) return;
  size.keeping_forward = size.forward;
  size.kept_backward = size.backward;
}

int TypicalLayer(const model::ModelSpec& model) {
  int most = model.num_layers() > 2 ? 1 : 0;
  for (int layer = most + 1; layer + 1 < model.num_layers(); ++layer) {
    if (model::ForwardFlops(model, layer, 1) > model::ForwardFlops(model, most, 1)) most = layer;
  }
  return most;
}

std::string ModelCostText(const model::ModelSpec& model) {
  std::string text;
  for (const model::LayerSpec& layer : model.layers)
    absl::StrAppend(&text, ShapeText(model, layer), "\n");
  return text;
}

std::string ModelFingerprint(const model::ModelSpec& model) {
  return absl::StrFormat("%016x", Digest(ModelCostText(model)));
}

Profile BlankProfile(const model::ModelSpec& model, const job::JobSpec& job) {
  Profile profile;
  profile.model_fingerprint = ModelFingerprint(model);
  profile.model = DescribeModel(model);
  profile.sequence_length = job.sequence_length;
  profile.compute_threads = job.compute_threads;
  return profile;
}

std::vector<int64_t> ProfiledSizes(const job::JobSpec& job) {
  if (job.micro_batch_size > 0) return {job.micro_batch_size};
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= job.global_batch_size; ++size) {
    if (job.global_batch_size % size == 0) sizes.push_back(size);
  }
  return sizes;
}

int64_t QuickSize(const job::JobSpec& job) {
  const std::vector<int64_t> sizes = ProfiledSizes(job);
  for (int64_t size : sizes) {
    if (size * job.sequence_length >= kQuickTokens) return size;
  }
  return sizes.back();
}

const char* OptimizerName(const job::JobSpec& job) {
  if (job.optim == job::OptimizerKind::kAdamW) return "adamw";
  return job::MomentsOf(job) > 0 ? "sgd with momentum" : "sgd";
}

Bytes UpdatedBytes(const model::ParamBlock& block, int moments) {
  // All is read and written, but for working copies, which are written only.
  const Bytes weights = block.has_masters ? block.master_bytes() : block.weight_bytes;
  const Bytes copies = block.has_masters ? block.weight_bytes : Bytes();
  return (weights + block.moment_bytes * moments) * 2 + copies;
}

Bytes UpdateBytes(const model::ParamBlock& block, int moments) {
  return UpdatedBytes(block, moments) +
         block.gradient_bytes * static_cast<int64_t>(block.references.size());
}

HostWorkload HostWorkloadOf(const model::ModelSpec& model, const job::JobSpec& job) {
  HostWorkload work;
  work.model.name = model.name;
  work.model.inputs = model.inputs;
  work.model.labels_per_sample = model.labels_per_sample;
  work.model.counted_labels = model.counted_labels;
  work.model.costs.resize(1);
  int64_t total = 0;
  for (const model::ParamBlock& block : model.blocks) {
    model::ParamBlock kept = block;
    kept.references.clear();
    if (kept.elements() > kHostBlockElements) {
      model::TensorSpec tensor = block.tensors[0];
      tensor.shape = {kHostBlockElements};
      tensor.gradient.dtype = tensor.accumulator.dtype;
      kept = model::ParamBlock();
      kept.name = block.name;
      model::AddTensor(kept, std::move(tensor));
    }
    if (total > 0 && total + kept.elements() > kHostElements) break;
    total += kept.elements();
    const int index = work.model.num_layers();
    kept.owner_layer = index;
    work.model.layers.push_back({index, 0, {}});
    work.model.boundaries.emplace_back();
    model::AddReference(work.model, index, model::AddBlock(work.model, std::move(kept)));
  }
  work.model.boundaries.emplace_back();
  model::StoreGradientsAs(model.gradient_dtype, work.model);
  plan::Plan& plan = work.plan;
  plan.gradient_dtype = model.gradient_dtype;
  plan.microbatch_size = job.global_batch_size;
  plan.sequence_length = job.sequence_length;
  plan.backward_groups = {{{0, work.model.num_layers() - 1}, 0}};
  plan.update = job::UpdateMode::kDeferred;
  plan.optimizer_moments = job::MomentsOf(job);
  plan.devices.resize(1);
  return work;
}

Bytes LinkSlice(const plan::DeviceSpec& device, size_t num_devices) {
  const int64_t most =
      std::min(MiB(32).count(), MiB(128).count() / static_cast<int64_t>(num_devices));
  return Bytes(std::min(most, device.memory.count() / 4) / kLinkGranule * kLinkGranule);
}

absl::Status CheckProfile(const Profile& profile, absl::string_view where,
                          const model::ModelSpec& model, const job::JobSpec& job,
                          const std::vector<plan::DeviceSpec>& devices) {
  if (profile.sequence_length != job.sequence_length) {
    return Differs(where, "model.sequence_length",
                   absl::StrCat("sequences of ", profile.sequence_length),
                   absl::StrCat("a job with ", job.sequence_length));
  }
  const std::string fingerprint = ModelFingerprint(model);
  if (profile.model_fingerprint != fingerprint) {
    return Differs(
        where, "model.fingerprint",
        absl::StrCat("another model (", profile.model_fingerprint, ", ", profile.model, ")"),
        absl::StrCat(fingerprint, " (", DescribeModel(model), ")"));
  }
  if (profile.compute_threads != job.compute_threads) {
    return Differs(where, "compute_threads", absl::StrCat(profile.compute_threads, " threads"),
                   absl::StrCat("a job with compute_threads: ", job.compute_threads));
  }
  if (profile.host.optimizer != OptimizerName(job)) {
    return Differs(where, "host.optimizer", profile.host.optimizer,
                   absl::StrCat("a job with optim: ", OptimizerName(job)));
  }
  if (profile.devices.size() != devices.size()) {
    return Differs(where, "devices", absl::StrCat(profile.devices.size(), " devices"),
                   absl::StrCat("a machine with ", devices.size()));
  }
  for (size_t d = 0; d < devices.size(); ++d) {
    if (profile.devices[d].spec == ToString(devices[d])) continue;
    return Differs(where, absl::StrCat("devices[", d, "].spec"),
                   absl::StrCat("a device ", profile.devices[d].spec), ToString(devices[d]));
  }
  const std::vector<LayerShape> shapes = DistinctLayers(model);
  for (size_t d = 0; d < devices.size(); ++d) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      const std::vector<LayerProfile>& layers = profile.devices[d].layers;
      if (s < layers.size() && layers[s].layers == shapes[s].layers) {
        const std::string field = absl::StrCat("devices[", d, "].layers[", s, "]");
        HARMONY_RETURN_IF_ERROR(CheckLayer(layers[s], where, field, model));
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": devices[", d, "].layers: there are no times of layer ",
                       shapes[s].layers.front(), " (", shapes[s].name,
                       ") and those alike; make a profile anew with `harmony profile --again`"));
    }
  }
  return absl::OkStatus();
}

double InterpolateSeconds(const std::vector<LayerSizeProfile>& sizes, int64_t samples,
                          double (*time)(const LayerSizeProfile&)) {
  const double wanted = static_cast<double>(samples);
  if (sizes.size() == 1) {
    return time(sizes[0]) * wanted / static_cast<double>(sizes[0].samples);
  }
  size_t upper = 1;
  while (upper + 1 < sizes.size() && sizes[upper].samples < samples) ++upper;
  const LayerSizeProfile& a = sizes[upper - 1];
  const LayerSizeProfile& b = sizes[upper];
  const double share =
      (wanted - static_cast<double>(a.samples)) / static_cast<double>(b.samples - a.samples);
  return std::max(time(a) + (time(b) - time(a)) * share, 0.0);
}

}  // namespace harmony::profile
