#include "worker/models/layer_params.h"

#include <ATen/ops/from_blob.h>

#include "absl/strings/str_cat.h"
#include "worker/device/cpu_memory.h"

namespace harmony {

at::Tensor WrapFloat(const float* data, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(data), shape, at::kFloat);
}

LayerParams::LayerParams(const ModelSpec& model, int layer, absl::Span<const UseBinding> bindings) {
  for (int use : model.layers[layer].uses) {
    BoundBlock bound{&model.blocks[model.uses[use].block], {use, {}, {}}};
    for (const UseBinding& binding : bindings) {
      if (binding.use == use) bound.binding = binding;
    }
    blocks_.push_back(bound);
  }
}

const LayerParams::BoundBlock* LayerParams::Locate(absl::string_view suffix,
                                                   const TensorSpec** tensor) const {
  for (const BoundBlock& bound : blocks_) {
    *tensor = FindTensor(*bound.block, suffix);
    if (*tensor) return &bound;
  }
  return nullptr;
}

Param LayerParams::Find(absl::string_view suffix) const {
  Param param;
  const TensorSpec* tensor = nullptr;
  const BoundBlock* bound = Locate(suffix, &tensor);
  if (!bound) return param;
  const auto wrap = [tensor](DeviceAddress block, const StoredAs& form) {
    return WrapFloat(HostPointer<const float>(block + form.offset), tensor->shape);
  };
  if (bound->binding.weights) param.weight = wrap(bound->binding.weights, tensor->weight);
  if (bound->binding.gradients) param.gradient = wrap(bound->binding.gradients, tensor->gradient);
  return param;
}

Param LayerParams::Get(absl::string_view suffix) const {
  const TensorSpec* tensor = nullptr;
  TORCH_CHECK(Locate(suffix, &tensor), "the model has no parameter ", std::string(suffix),
              " in this layer");
  return Find(suffix);
}

LinearParam LayerParams::Linear(absl::string_view name, bool in_out) const {
  LinearParam linear;
  linear.weight = Get(absl::StrCat(name, ".weight"));
  linear.bias = Find(absl::StrCat(name, ".bias"));
  linear.in_out = in_out;
  return linear;
}

}  // namespace harmony
