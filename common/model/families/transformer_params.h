#pragma once

// Parameter blocks of the built-in families: names, shapes, how they begin. Private to this folder.

#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace harmony::model {

ParamBlock TokenTableParams(const ModelConfig& config);
ParamBlock PositionTableParams(const ModelConfig& config);  // gpt2
ParamBlock BlockParams(const ModelConfig& config, int layer);
ParamBlock HeadParams(const ModelConfig& config, int layer);

}  // namespace harmony::model
