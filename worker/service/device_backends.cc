#include "worker/service/device_backends.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"
#include "common/model/padding_token.h"
#include "worker/device/cpu_device.h"
#include "worker/graphs/graph_layer.h"
#include "worker/models/builtin_layers.h"
#include "worker/models/gemm.h"

namespace harmony::worker {
namespace {

// Layers of some models on devices of one kind. The first row that fits builds them.
struct LayerImplementation {
  plan::DeviceKind device;
  bool (*has_layers_of)(const runtime::AttachedJob& job);
  absl::StatusOr<LayerChain> (*build)(const runtime::AttachedJob& job);
};

bool IsBuiltin(const runtime::AttachedJob& job) {
  return std::holds_alternative<model::ModelConfig>(job.architecture);
}

absl::StatusOr<LayerChain> BuildBuiltin(const runtime::AttachedJob& job) {
  if (job.spec.bf16 && !HasBf16Products()) {
    spdlog::warn("this processor has no instructions for bf16: products take as long as in fp32");
  }
  return MakeBuiltinLayers(job.model, {.config = std::get<model::ModelConfig>(job.architecture),
                                       .tokens = job.plan.sequence_length,
                                       .padding_token = model::PaddingToken(job.config_json)});
}

bool IsExported(const runtime::AttachedJob& job) {
  return std::holds_alternative<model::ExportedModel>(job.architecture);
}

absl::StatusOr<LayerChain> BuildExported(const runtime::AttachedJob& job) {
  const auto& exported = std::get<model::ExportedModel>(job.architecture);
  return MakeGraphLayers(job.model, exported.AtLength(job.plan.sequence_length),
                         job.spec.model_name_or_path);
}

constexpr LayerImplementation kImplementations[] = {
    {plan::DeviceKind::kSim, IsBuiltin, BuildBuiltin},
    {plan::DeviceKind::kSim, IsExported, BuildExported},
};

// Places for kept activations are laid out by the description.
absl::Status CheckKeptBytes(const runtime::AttachedJob& job, const LayerChain& layers) {
  const int64_t samples = job.plan.microbatch_size;
  for (const model::LayerSpec& layer : job.model.layers) {
    const Bytes kept = layers[static_cast<size_t>(layer.index)]->KeptBytes(samples);
    const Bytes described = model::KeptTensorBytes(job.model.cost_of(layer.index), samples);
    if (kept == described) continue;
    return absl::InternalError(absl::StrCat("layer ", layer.index, " keeps ",
                                            FormatBytesExact(kept), ", its description says ",
                                            FormatBytesExact(described)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDeviceKind(const plan::DeviceSpec& device) {
  if (device.kind == plan::DeviceKind::kSim) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("device ", ToString(device),
                   ": this build computes on sim devices only; the cuda plugin is not part of it"));
}

absl::StatusOr<std::unique_ptr<ComputeDevice>> OpenComputeDevice(const plan::DeviceSpec& device,
                                                                 const ipc::MappedRegion& region,
                                                                 Bytes workspace,
                                                                 int compute_threads) {
  HARMONY_RETURN_IF_ERROR(CheckDeviceKind(device));
  return CpuDevice::Create(
      {.resident = region.data(), .workspace = workspace, .compute_threads = compute_threads});
}

absl::StatusOr<LayerChain> BuildLayers(const runtime::AttachedJob& job,
                                       const plan::DeviceSpec& device) {
  for (const LayerImplementation& row : kImplementations) {
    if (row.device != device.kind || !row.has_layers_of(job)) continue;
    HARMONY_ASSIGN_OR_RETURN(LayerChain layers, row.build(job));
    HARMONY_RETURN_IF_ERROR(CheckKeptBytes(job, layers));
    return layers;
  }
  return absl::UnimplementedError(
      absl::StrCat("device ", ToString(device), " cannot compute the layers of this model"));
}

}  // namespace harmony::worker
