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

namespace harmony::worker {

// A parameter and its gradient; what is not bound is an undefined tensor.
struct Param {
  at::Tensor weight;
  at::Tensor gradient;
};

// A projection. `in_out`: the weight is [in, out] (gpt2's Conv1D), else [out, in].
struct LinearParam {
  Param weight;
  Param bias;  // undefined tensors: none
  bool in_out = false;
};

// Wraps the host's memory, owns nothing, lives as long as the binding's buffers. One thread.
class LayerParams {
 public:
  LayerParams(const model::ModelSpec& model, int layer,
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

  std::vector<BoundBlock> blocks_;
};

// Wraps memory as a contiguous tensor without copying. REQUIRES: fp32 or bf16.
at::Tensor WrapTensor(DeviceAddress address, DType dtype, at::IntArrayRef shape);

// Calls fn with a null pointer of the type of the tensor's numbers. REQUIRES: fp32 or bf16.
template <typename Fn>
auto WithNumbersOf(const at::Tensor& tensor, Fn&& fn) {
  return tensor.scalar_type() == at::kBFloat16 ? fn(static_cast<c10::BFloat16*>(nullptr))
                                               : fn(static_cast<float*>(nullptr));
}

}  // namespace harmony::worker
