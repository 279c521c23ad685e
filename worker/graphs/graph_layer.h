#pragma once

// The layers of an exported model (docs/model_format.md): an implementation of
// worker/layers/layer.h that runs graphs of ATen operations, on any device that LibTorch has.

#include <string>

#include "absl/status/statusor.h"
#include "common/model/exported_model.h"
#include "common/model/model_spec.h"
#include "worker/device/compute_device.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// `device` outlives the layers; what they take from its workspace they take from LibTorch's
// allocator. Each file of graphs in `directory` is read once, now, and shared by the layers that
// name it.
//
// `exported` is of one length (AtLength), `model` is BuildModelSpec(exported). Errors: those of
// LoadLayerGraphs; InvalidArgument when a graph does not fit the layer that names it, Internal when
// `model` does not fit `exported`. All name the layer.
absl::StatusOr<LayerChain> MakeGraphLayers(const model::ModelSpec& model,
                                           const model::ExportedModel& exported,
                                           const std::string& directory, ComputeDevice& device);

}  // namespace harmony::worker
