#include "common/plan/profile.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace harmony {
namespace {

constexpr int64_t kQuickTokens = 512;
constexpr int64_t kHostElements = 16 << 20, kHostBlockElements = 8 << 20;
constexpr int64_t kLinkGranule = 4096;

std::string ShapeText(const ModelSpec& model, const LayerSpec& layer) {
  std::string text = KindName(layer.kind);
  for (int use : layer.uses) {
    const ParamUse& used = model.uses[use];
    absl::StrAppend(&text, used.needed_in_backward ? " |" : " -");
    for (const TensorSpec& tensor : model.blocks[used.block].tensors) {
      absl::StrAppend(&text, " ", absl::StrJoin(tensor.shape, "x"));
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

absl::Status Differs(absl::string_view where, absl::string_view field, absl::string_view found,
                     absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", field, ": the profile is of ", found, ", this is ", wanted,
                   "; make one with `harmony profile` for this job and these devices"));
}

absl::Status CheckLayer(const LayerProfile& layer, absl::string_view where,
                        const std::string& field, const ModelSpec& model, const JobSpec& job) {
  const int index = layer.layers.front();
  const char* kind = KindName(model.layers[index].kind);
  if (layer.kind != kind) {
    return Differs(where, field + ".kind", layer.kind, kind);
  }
  const Bytes parameters = LayerParameterBytes(model, index);
  if (layer.parameter_bytes != parameters) {
    return Differs(where, field + ".parameter_bytes",
                   absl::StrCat(layer.parameter_bytes.count(), " bytes"),
                   absl::StrCat("a layer with ", parameters.count()));
  }
  const Bytes input = BoundaryBytes(model, index, 1, job.sequence_length);
  if (layer.input_bytes != input) {
    return Differs(where, field + ".input_bytes_per_sample",
                   absl::StrCat(layer.input_bytes.count(), " bytes"),
                   absl::StrCat("a layer with ", input.count()));
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

const char* KindName(LayerKind kind) {
  static constexpr const char* kNames[] = {"embedding", "block", "head"};
  return kNames[static_cast<int>(kind)];
}

std::vector<LayerShape> DistinctLayers(const ModelSpec& model) {
  std::vector<LayerShape> shapes;
  std::map<std::string, size_t> known;
  for (const LayerSpec& layer : model.layers) {
    const auto [at, added] = known.emplace(ShapeText(model, layer), shapes.size());
    if (added) shapes.push_back({layer.kind, {}});
    shapes[at->second].layers.push_back(layer.index);
  }
  return shapes;
}

std::string ModelCostText(const ModelSpec& model, int64_t sequence_length) {
  const ModelConfig& c = model.config;
  std::string text =
      absl::StrCat("family ", static_cast<int>(c.family), " vocabulary ", c.vocab_size, " hidden ",
                   c.hidden_size, " heads ", c.num_heads, "/", c.num_kv_heads, "x", c.head_dim,
                   " inner ", c.intermediate_size, " activation ", static_cast<int>(c.activation),
                   " tied ", c.tie_word_embeddings, " bias ", c.qkv_bias, c.attention_output_bias,
                   c.mlp_bias, " qk_norm ", c.qk_norm, " sequence ", sequence_length, "\n");
  for (const LayerSpec& layer : model.layers) absl::StrAppend(&text, ShapeText(model, layer), "\n");
  return text;
}

std::string ModelFingerprint(const ModelSpec& model, int64_t sequence_length) {
  return absl::StrFormat("%016x", Digest(ModelCostText(model, sequence_length)));
}

Profile BlankProfile(const ModelSpec& model, const JobSpec& job) {
  Profile profile;
  profile.model_fingerprint = ModelFingerprint(model, job.sequence_length);
  profile.model =
      absl::StrCat(model.config.model_type, ", ", model.parameter_count(), " parameters");
  profile.sequence_length = job.sequence_length;
  profile.compute_threads = job.compute_threads;
  return profile;
}

std::vector<int64_t> ProfiledSizes(const JobSpec& job) {
  if (job.micro_batch_size > 0) return {job.micro_batch_size};
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= job.global_batch_size; ++size) {
    if (job.global_batch_size % size == 0) sizes.push_back(size);
  }
  return sizes;
}

int64_t QuickSize(const JobSpec& job) {
  const std::vector<int64_t> sizes = ProfiledSizes(job);
  for (int64_t size : sizes) {
    if (size * job.sequence_length >= kQuickTokens) return size;
  }
  return sizes.back();
}

const char* OptimizerName(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW ? "adamw" : "sgd";
}

Bytes UpdateBytes(const ParamBlock& block, OptimizerKind optimizer) {
  const int64_t kept = optimizer == OptimizerKind::kAdamW ? 3 : 1;
  return block.size() * (2 * kept + static_cast<int64_t>(block.uses.size()));
}

HostWorkload HostWorkloadOf(const ModelSpec& model, const JobSpec& job) {
  HostWorkload work;
  work.model.config = model.config;
  int64_t total = 0;
  for (const ParamBlock& block : model.blocks) {
    ParamBlock kept = block;
    if (kept.elements > kHostBlockElements) {
      kept.elements = kHostBlockElements;
      kept.tensors.resize(1);
      kept.tensors[0].shape = {kHostBlockElements};
      kept.tensors[0].offset = 0;
      kept.tensors[0].elements = kHostBlockElements;
    }
    if (total > 0 && total + kept.elements > kHostElements) break;
    total += kept.elements;
    const int index = static_cast<int>(work.model.blocks.size());
    kept.owner_layer = index;
    kept.uses = {index};
    work.model.blocks.push_back(std::move(kept));
    work.model.uses.push_back({index, index, true});
    work.model.layers.push_back({LayerKind::kBlock, index, {index}});
  }
  Plan& plan = work.plan;
  plan.microbatch_size = job.global_batch_size;
  plan.sequence_length = job.sequence_length;
  plan.backward_groups = {{{0, work.model.num_layers() - 1}, 0}};
  plan.update = UpdateMode::kDeferred;
  plan.optimizer_moments = job.optim == OptimizerKind::kAdamW ? 2 : 0;
  plan.devices.resize(1);
  return work;
}

Bytes LinkSlice(const DeviceSpec& device, size_t num_devices) {
  const int64_t most =
      std::min(MiB(32).count(), MiB(128).count() / static_cast<int64_t>(num_devices));
  return Bytes(std::min(most, device.memory.count() / 4) / kLinkGranule * kLinkGranule);
}

absl::Status CheckProfile(const Profile& profile, absl::string_view where, const ModelSpec& model,
                          const JobSpec& job, const std::vector<DeviceSpec>& devices) {
  if (profile.sequence_length != job.sequence_length) {
    return Differs(where, "model.sequence_length",
                   absl::StrCat("sequences of ", profile.sequence_length),
                   absl::StrCat("a job with ", job.sequence_length));
  }
  const std::string fingerprint = ModelFingerprint(model, job.sequence_length);
  if (profile.model_fingerprint != fingerprint) {
    return Differs(
        where, "model.fingerprint",
        absl::StrCat("another model (", profile.model_fingerprint, ", ", profile.model, ")"),
        absl::StrCat(fingerprint, " (", model.config.model_type, ", ", model.parameter_count(),
                     " parameters)"));
  }
  if (profile.compute_threads != job.compute_threads) {
    return Differs(where, "compute_threads", absl::StrCat(profile.compute_threads, " threads"),
                   absl::StrCat("a job with compute_threads: ", job.compute_threads));
  }
  if (profile.host.optimizer != OptimizerName(job.optim)) {
    return Differs(where, "host.optimizer", profile.host.optimizer,
                   absl::StrCat("a job with optim: ", OptimizerName(job.optim)));
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
        HARMONY_RETURN_IF_ERROR(CheckLayer(layers[s], where, field, model, job));
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": devices[", d, "].layers: there are no times of layer ",
                       shapes[s].layers.front(), " (", KindName(shapes[s].kind),
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

}  // namespace harmony
