#pragma once

#include "common/model/model_spec.h"

namespace harmony::testing_support {

// Takes the gap behind the last tensor away, so that its elements end within a vector.
inline void TrimBlock(model::ParamBlock& block) {
  const model::TensorSpec& last = block.tensors.back();
  const auto end = [&last](const model::StoredAs& form) {
    return form.offset + SizeOf(form.dtype) * last.elements;
  };
  block.weight_bytes = end(last.weight);
  block.accumulator_bytes = end(last.accumulator);
  block.gradient_bytes = end(last.gradient);
  block.moment_bytes = end(last.moment);
}

}  // namespace harmony::testing_support
