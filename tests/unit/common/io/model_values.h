#pragma once

// Weights for tests that write a model.

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/io/hf_export.h"
#include "common/model/model_spec.h"

namespace harmony::io {

using BlockValues = std::vector<std::vector<float>>;  // of each block of a model

// A value for every element, always the same ones.
inline BlockValues RandomValues(const model::ModelSpec& model) {
  BlockValues values;
  CounterRandom random(5);
  for (const model::ParamBlock& block : model.blocks) {
    std::vector<float>& data = values.emplace_back(block.elements());
    for (float& value : data) value = static_cast<float>(random.NextDouble() - 0.5);
  }
  return values;
}

// As writers take them. Both must outlive it.
inline TensorValues TensorsOf(const model::ModelSpec& model, const BlockValues& values) {
  return [&model, &values](const model::ParamBlock& block, const model::TensorSpec& tensor) {
    const std::vector<float>& data = values[static_cast<size_t>(&block - model.blocks.data())];
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data.data()),
                               data.size() * sizeof(float))
        .subspan(static_cast<size_t>(tensor.weight.offset.count()),
                 static_cast<size_t>(tensor.elements) * sizeof(float));
  };
}

}  // namespace harmony::io
