#include "common/profile/profile_estimate.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"

namespace harmony::profile {
namespace {

constexpr double kLongestForward = 2e9;     // FLOPs: a tenth of a second
constexpr Bytes kLargestLayer(32'000'000);  // of parameters
constexpr int64_t kTokens = 512;
constexpr Bytes kMemory = MiB(256);
constexpr char kStandIn[] = "gpt2-124m";
constexpr int64_t kStandInTokens = 128;
constexpr double kLayerOverhead = 30e-6;  // of a layer in a task, whatever its size
constexpr double kMemoryBytes = 8e9;      // gradients zeroed and checked
// Tasks that take longer by more than this while other devices compute share something with them;
// by less, it is the error of the measurement.
constexpr double kNotAlone = 1.1;

LinkProfile WithSpeed(LinkProfile link, BytesPerSecond given) {
  if (given.value > 0) link.alone = link.duplex = link.together = Exactly(given.value);
  return link;
}

// What a profile may say.
double Bounded(double seconds) { return std::min(seconds, limits::kMostSeconds); }

LayerSizeProfile SizeOf(const model::ModelSpec& model, int layer, int64_t samples, double flops) {
  const model::LayerRange range{layer, layer};
  const double forward = model::ForwardFlops(model, layer, samples) / flops;
  LayerSizeProfile size;
  size.samples = samples;
  if (!RunsFused(model, layer)) {
    size.forward = Exactly(Bounded(kLayerOverhead + forward));
    size.forward_workspace =
        model::WorkspaceBound(model, model::WorkspaceOf::kForward, range, samples);
  }
  size.backward = Exactly(Bounded(kLayerOverhead + kBackwardForwards * forward));
  size.backward_workspace =
      model::WorkspaceBound(model, model::WorkspaceOf::kBackward, range, samples);
  if (Recomputes(model, layer)) {
    size.backward_inner = size.backward;
    NoteRecompute(model, layer, size);
    size.activation_bytes = model::TimesSaturated(model.cost_of(layer).saved_per_sample, samples);
  }
  return size;
}

std::vector<LayerProfile> LayersOf(const model::ModelSpec& model, const job::JobSpec& job,
                                   bool paced, double flops) {
  std::vector<LayerProfile> layers;
  for (const LayerShape& shape : DistinctLayers(model)) {
    LayerProfile layer;
    layer.kind = shape.name;
    layer.layers = shape.layers;
    const int first = shape.layers.front();
    layer.parameter_bytes = model::LayerParameterBytes(model, first);
    layer.input_bytes = model::LayerInputBytes(model, first, 1);
    const Bytes gradients = model::LayerAccumulatorBytes(model, first);
    const double seconds =
        paced ? 0 : Bounded(static_cast<double>(gradients.count()) / kMemoryBytes);
    layer.zero = layer.check = Exactly(seconds);
    // Times are linear in the size: two give the line.
    for (int64_t samples : std::set<int64_t>{1, std::min<int64_t>(job.global_batch_size, 2)}) {
      layer.sizes.push_back(SizeOf(model, first, samples, flops));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

absl::StatusOr<CalibrationWork> CalibrationWorkOf(const model::ModelSpec& model,
                                                  const std::string& config_json,
                                                  const job::JobSpec& job, size_t num_devices) {
  CalibrationWork work{model, config_json, job, TypicalLayer(model), {}, 0};
  int64_t samples = std::clamp<int64_t>(kTokens / job.sequence_length, 1, job.global_batch_size);
  const double one = model::ForwardFlops(model, work.layer, 1);
  if (one > kLongestForward || model::LayerParameterBytes(model, work.layer) > kLargestLayer) {
    HARMONY_ASSIGN_OR_RETURN(work.config_json, model::PresetConfigJson(kStandIn));
    HARMONY_ASSIGN_OR_RETURN(const model::ModelConfig config,
                             model::ParseModelConfig(work.config_json, kStandIn));
    work.model =
        model::BuildModelSpec(config, kStandInTokens, job.bf16 ? DType::kBF16 : DType::kF32);
    work.layer = TypicalLayer(work.model);
    work.job.sequence_length = kStandInTokens;
    samples = 1;
  } else {
    samples = std::clamp<int64_t>(static_cast<int64_t>(kLongestForward / one), 1, samples);
  }
  work.job.global_batch_size = work.job.micro_batch_size = samples;
  work.job.virtual_replicas = 0;  // one task is measured
  work.forward_flops = model::ForwardFlops(work.model, work.layer, samples);
  for (size_t d = 0; d < std::min(num_devices, kMostCalibrated); ++d) {
    plan::DeviceSpec device;
    device.ordinal = static_cast<int>(d);
    device.memory = kMemory;
    work.devices.push_back(device);
  }
  return work;
}

Profile EstimateProfile(const CalibrationWork& work, const Profile& speeds,
                        const model::ModelSpec& model, const job::JobSpec& job,
                        const std::vector<plan::DeviceSpec>& devices) {
  Profile profile = BlankProfile(model, job);
  profile.calibrated = true;
  profile.versions = speeds.versions;
  profile.host = speeds.host;
  if (const BytesPerSecond paced = plan::PacedHostRate(devices); paced.value > 0) {
    profile.host.update_rate = profile.host.norm_rate = Exactly(paced.value);
  }
  // Devices without a pace share the cores; the measured ones did.
  const double at_once = std::max(speeds.versions.cores / std::max(job.compute_threads, 1), 1);
  const auto crowd = [at_once](size_t devices) {
    return std::max(static_cast<double>(devices) / at_once, 1.0);
  };
  const size_t on_cores = absl::c_count_if(devices, std::mem_fn(&plan::DeviceSpec::on_cores));
  for (const plan::DeviceSpec& spec : devices) {
    const DeviceProfile& like = speeds.devices[profile.devices.size() % speeds.devices.size()];
    DeviceProfile device;
    device.spec = ToString(spec);
    device.memory = spec.memory;
    const double flops = spec.paced() ? spec.flops.value
                                      : kBackwardForwards * work.forward_flops /
                                            like.layers.front().sizes.front().backward.median *
                                            crowd(speeds.devices.size());
    if (spec.on_cores()) device.together = crowd(on_cores);
    device.layers = LayersOf(model, job, spec.paced(), flops);
    device.h2d = WithSpeed(like.h2d, spec.h2d);
    device.d2h = WithSpeed(like.d2h, spec.d2h);
    if (devices.size() > 1) device.p2p = WithSpeed(like.p2p.value_or(like.h2d), spec.p2p);
    profile.devices.push_back(std::move(device));
  }
  return profile;
}

std::string DescribeEstimate(const Profile& profile, const model::ModelSpec& model,
                             const std::vector<plan::DeviceSpec>& devices) {
  const int block = TypicalLayer(model);
  std::set<std::string> seen;  // devices alike are named once
  std::vector<std::string> parts;
  for (size_t d = 0; d < devices.size(); ++d) {
    const DeviceProfile& device = profile.devices[d];
    const LayerProfile* layer = &device.layers.front();
    for (const LayerProfile& each : device.layers) {
      if (std::find(each.layers.begin(), each.layers.end(), block) != each.layers.end()) {
        layer = &each;
      }
    }
    const LayerSizeProfile& size = layer->sizes.back();
    const double flops = model::ForwardFlops(model, block, size.samples) * kBackwardForwards /
                         (size.backward.median - kLayerOverhead);
    const auto rate = [&](const char* name, const LinkProfile& link, BytesPerSecond given) {
      return absl::StrFormat("%s %.3g GB/s (%s)", name,
                             (devices.size() > 1 ? link.together : link.duplex).median / 1e9,
                             given.value > 0 ? "modelled" : "calibrated");
    };
    std::string part = absl::StrFormat("layers by their FLOPs at %.3g GFLOP/s (%s), %s, %s",
                                       flops / 1e9, devices[d].paced() ? "modelled" : "calibrated",
                                       rate("copies in", device.h2d, devices[d].h2d),
                                       rate("out", device.d2h, devices[d].d2h));
    if (device.p2p) absl::StrAppend(&part, ", ", rate("to devices", *device.p2p, devices[d].p2p));
    if (seen.insert(device.spec).second) parts.push_back(std::move(part));
  }
  const auto sharing = absl::c_count_if(
      profile.devices, [](const DeviceProfile& device) { return device.together > 1; });
  if (sharing > 0) {
    const double slowdown = absl::c_max_element(profile.devices, [](const auto& a, const auto& b) {
                              return a.together < b.together;
                            })->together;
    parts.push_back(absl::StrFormat("%.0f of %d devices compute at a time, for they share cores",
                                    static_cast<double>(sharing) / slowdown, sharing));
  }
  return absl::StrCat(
      absl::StrJoin(parts, "; "),
      absl::StrFormat("; updates at %.3g GB/s (%s)", profile.host.update_rate.median / 1e9,
                      plan::PacedHostRate(devices).value > 0 ? "modelled" : "calibrated"));
}

std::optional<Profile> WithOneMoreDevice(Profile profile,
                                         const std::vector<plan::DeviceSpec>& devices) {
  const plan::DeviceSpec& last = devices.back();
  const auto computing = absl::c_count_if(devices, std::mem_fn(&plan::DeviceSpec::on_cores)) + 1;
  if (last.on_cores() && computing * profile.compute_threads > profile.versions.cores) {
    return std::nullopt;
  }
  if (profile.devices.back().together > kNotAlone) return std::nullopt;
  if (profile.devices.size() == 1) {
    DeviceProfile& device = profile.devices.front();
    const bool slower = device.h2d.duplex.median < device.d2h.duplex.median;
    device.p2p = WithSpeed(slower ? device.h2d : device.d2h, last.p2p);
  }
  profile.devices.push_back(profile.devices.back());
  return profile;
}

}  // namespace harmony::profile
