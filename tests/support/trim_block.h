#pragma once

#include "common/model/model_spec.h"

namespace harmony::testing_support {

// Takes the gap behind the last tensor away, so that its elements end within a vector.
inline void TrimBlock(model::ParamBlock& block) {
  const model::TensorSpec& last = block.tensors.back();
  const Bytes end = last.weight.offset + SizeOf(last.weight.dtype) * last.elements;
  block.weight_bytes = block.gradient_bytes = block.moment_bytes = end;
}

}  // namespace harmony::testing_support
