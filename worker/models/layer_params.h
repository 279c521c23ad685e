#pragma once

// The parameters of one layer as its code sees them: tensors over the bound buffers, found by the
// part of their Hugging Face name that follows the layer's prefix ("attn.c_attn.weight").

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/models/primitives.h"

namespace harmony::worker {

// A projection. `in_out`: the weight is [in, out] (gpt2's Conv1D), else [out, in].
struct LinearParam {
  Param weight;
  Param bias;  // undefined tensors: none
  bool in_out = false;
};

// Owns no memory, lives as long as the binding's buffers. One thread.
class LayerParams {
 public:
  // `primitives` outlives it.
  LayerParams(const Primitives& primitives, const model::ModelSpec& model, int layer,
              absl::Span<const ReferenceBinding> bindings);

  // The tensor of this layer whose name ends with "." + suffix, or is it. Throws c10::Error when
  // there is none: a ModelSpec that does not fit the layer's code.
  Param Get(absl::string_view suffix) const;
  // As Get, with undefined tensors when there is none.
  Param Find(absl::string_view suffix) const;
  // name.weight and, when there is one, name.bias.
  LinearParam Linear(absl::string_view name, bool in_out) const;

 private:
  struct BoundBlock {
    const model::ParamBlock* block = nullptr;
    ReferenceBinding binding;  // without addresses: not bound
  };
  // The entry and tensor of a name; null when there is none.
  const BoundBlock* Locate(absl::string_view suffix, const model::TensorSpec** tensor) const;

  const Primitives& primitives_;
  std::vector<BoundBlock> blocks_;
};

}  // namespace harmony::worker
