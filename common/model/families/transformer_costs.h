#pragma once

// What the layers of the built-in families cost, from their shapes: as the worker's own layers
// (worker/models) allocate.

#include "common/base/dtype.h"
#include "common/model/layer_cost.h"
#include "common/model/model_config.h"

namespace harmony::model {

LayerCost EmbeddingCost(const ModelConfig& config, int64_t sequence_length, DType activations);
LayerCost BlockCost(const ModelConfig& config, int64_t sequence_length, DType activations);
LayerCost HeadCost(const ModelConfig& config, int64_t sequence_length, DType activations);

}  // namespace harmony::model
