#include "worker/models/layer_params.h"

#include "absl/strings/str_cat.h"

namespace harmony::worker {

LayerParams::LayerParams(const Primitives& primitives, const model::ModelSpec& model, int layer,
                         absl::Span<const ReferenceBinding> bindings)
    : primitives_(primitives) {
  for (int reference : model.layers[layer].references) {
    BoundBlock bound{&model.blocks[model.references[reference].block], {reference, {}, {}}};
    for (const ReferenceBinding& binding : bindings) {
      if (binding.reference == reference) bound.binding = binding;
    }
    blocks_.push_back(bound);
  }
}

const LayerParams::BoundBlock* LayerParams::Locate(absl::string_view suffix,
                                                   const model::TensorSpec** tensor) const {
  for (const BoundBlock& bound : blocks_) {
    *tensor = model::FindTensor(*bound.block, suffix);
    if (*tensor) return &bound;
  }
  return nullptr;
}

Param LayerParams::Find(absl::string_view suffix) const {
  Param param;
  const model::TensorSpec* tensor = nullptr;
  const BoundBlock* bound = Locate(suffix, &tensor);
  if (!bound) return param;
  const auto wrap = [&](DeviceAddress block, const model::StoredAs& form) {
    return primitives_.Wrap(block + form.offset, form.dtype, tensor->shape);
  };
  if (bound->binding.weights) param.weight = wrap(bound->binding.weights, tensor->weight);
  if (bound->binding.gradients)
    param.gradient = wrap(bound->binding.gradients, tensor->accumulator);
  return param;
}

Param LayerParams::Get(absl::string_view suffix) const {
  const model::TensorSpec* tensor = nullptr;
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

}  // namespace harmony::worker
