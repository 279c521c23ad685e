#pragma once

// The layers of the built-in families (gpt2, llama and its relatives): on the CPU by LibTorch's
// operations and the kernels of this folder, on other devices by LibTorch's operations and the
// device's row kernels.

#include <cstdint>

#include "common/model/model_config.h"
#include "common/model/model_spec.h"
#include "worker/device/compute_device.h"
#include "worker/layers/layer.h"
#include "worker/models/gemm_kernel.h"

namespace harmony::worker {

struct BuiltinLayerOptions {
  model::ModelConfig config;   // that the model was built from
  int64_t tokens = 0;          // of a sequence
  int64_t padding_token = -1;  // see common/model/padding_token.h; -1: none
  // Where it is false, and on other devices than the CPU, forwards run one microbatch after the
  // other.
  bool rows_independent = gemm::RowsIndependent();
  // Tests of what other devices compute: on the CPU, too, as there.
  bool portable = false;
};

// `device` outlives the layers. What they take from its workspace they take from LibTorch's
// allocator.
LayerChain MakeBuiltinLayers(const model::ModelSpec& model, const BuiltinLayerOptions& options,
                             ComputeDevice& device);

}  // namespace harmony::worker
