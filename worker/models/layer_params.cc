#include "worker/models/layer_params.h"

#include <ATen/ops/from_blob.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace harmony {
namespace {

bool NameEndsWith(absl::string_view name, absl::string_view suffix) {
  if (!absl::EndsWith(name, suffix)) return false;
  return name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.';
}

}  // namespace

at::Tensor WrapFloat(const float* data, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(data), shape, at::kFloat);
}

LayerParams::LayerParams(const ModelSpec& model, int layer,
                         const std::vector<UseBinding>& bindings) {
  for (int use : model.layers[layer].uses) {
    Entry entry;
    for (const UseBinding& binding : bindings) {
      if (binding.use != use) continue;
      entry.weights = binding.weights;
      entry.gradients = binding.gradients;
    }
    for (const TensorSpec& spec : model.blocks[model.uses[use].block].tensors) {
      entry.spec = &spec;
      entries_.push_back(entry);
    }
  }
}

Param LayerParams::Find(absl::string_view suffix) const {
  Param param;
  for (const Entry& entry : entries_) {
    if (!NameEndsWith(entry.spec->name, suffix)) continue;
    const int64_t offset = entry.spec->offset;
    if (entry.weights) param.weight = WrapFloat(entry.weights + offset, entry.spec->shape);
    if (entry.gradients) param.gradient = WrapFloat(entry.gradients + offset, entry.spec->shape);
    break;
  }
  return param;
}

Param LayerParams::Get(absl::string_view suffix) const {
  for (const Entry& entry : entries_) {
    if (NameEndsWith(entry.spec->name, suffix)) return Find(suffix);
  }
  TORCH_CHECK(false, "the model has no parameter ", std::string(suffix), " in this layer");
}

LinearParam LayerParams::Linear(absl::string_view name, bool in_out) const {
  LinearParam linear;
  linear.weight = Get(absl::StrCat(name, ".weight"));
  linear.bias = Find(absl::StrCat(name, ".bias"));
  linear.in_out = in_out;
  return linear;
}

}  // namespace harmony
