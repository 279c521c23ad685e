#pragma once

// The layers of the built-in families (gpt2, llama and its relatives) on the CPU: LibTorch's
// operations and the kernels of this folder.

#include <cstdint>

#include "common/model/model_config.h"
#include "common/model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/models/gemm_kernel.h"

namespace harmony::worker {

struct BuiltinLayerOptions {
  model::ModelConfig config;   // that the model was built from
  int64_t tokens = 0;          // of a sequence
  int64_t padding_token = -1;  // see common/model/padding_token.h; -1: none
  // Where it is false, forwards run one microbatch after the other.
  bool rows_independent = gemm::RowsIndependent();
};

// For a CpuDevice. What a layer takes from the workspace it takes from LibTorch's allocator.
LayerChain MakeBuiltinLayers(const model::ModelSpec& model, const BuiltinLayerOptions& options);

}  // namespace harmony::worker
