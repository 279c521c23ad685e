#include "worker/service/device_backends.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"
#include "common/model/padding_token.h"
#include "worker/device/cuda_plugin.h"
#include "worker/device/sim_backend.h"
#include "worker/graphs/graph_layer.h"
#include "worker/models/builtin_layers.h"
#include "worker/models/gemm.h"

namespace harmony::worker {
namespace {

LayerChain BuildBuiltin(const model::ModelConfig& config, const runtime::AttachedJob& job,
                        ComputeDevice& device) {
  const bool on_cpu = device.target().kind == LayerTarget::Kind::kCpu;
  if (on_cpu && job.spec.bf16 && !HasBf16Products()) {
    spdlog::warn("this processor has no instructions for bf16: products take as long as in fp32");
  }
  return MakeBuiltinLayers(job.model,
                           {.config = config,
                            .tokens = job.plan.sequence_length,
                            .padding_token = model::PaddingToken(job.config_json)},
                           device);
}

absl::StatusOr<LayerChain> Build(const runtime::AttachedJob& job, ComputeDevice& device) {
  if (const auto* config = std::get_if<model::ModelConfig>(&job.architecture)) {
    return BuildBuiltin(*config, job, device);
  }
  return MakeGraphLayers(
      job.model,
      std::get<model::ExportedModel>(job.architecture).AtLength(job.plan.sequence_length),
      job.spec.model_name_or_path, device);
}

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

absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenBackend(const runtime::ProgramContext& context,
                                                           const plan::DeviceSpec& device) {
  switch (device.kind) {
    case plan::DeviceKind::kSim: {
      HARMONY_ASSIGN_OR_RETURN(ipc::MappedRegion region, context.MapDevice(device.ordinal));
      return MakeSimBackend(std::move(region));
    }
    case plan::DeviceKind::kCuda: {
      HARMONY_ASSIGN_OR_RETURN(const int fd, context.DeviceDescriptor(device.ordinal));
      return OpenCudaBackend(device, fd);
    }
  }
  return absl::InternalError("a device of no kind");
}

absl::StatusOr<LayerChain> BuildLayers(const runtime::AttachedJob& job, ComputeDevice& device) {
  HARMONY_ASSIGN_OR_RETURN(LayerChain layers, Build(job, device));
  HARMONY_RETURN_IF_ERROR(CheckKeptBytes(job, layers));
  return layers;
}

}  // namespace harmony::worker
