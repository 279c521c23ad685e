#include "common/model/model_spec.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace harmony::model {
namespace {

// The step in which tensors of a block take random numbers.
constexpr int64_t kInitAlignment = 16;

// Places a tensor behind what the form holds, whose size it moves on: by a length that depends on
// nothing before it, so that the same number of elements is taken in each form.
void Place(StoredAs& form, int64_t elements, Bytes& size, int64_t alignment = kSlotAlignment) {
  form.offset = size;
  size += (SizeOf(form.dtype) * elements).AlignUp(alignment);
}

// What the forms of a tensor are aligned to, so that as many numbers lie between the tensors of one
// form as of another: a loop over the numbers of several tensors needs it.
int64_t AlignmentOf(const TensorSpec& tensor, const StoredAs& form) {
  if (!tensor.has_master()) return kSlotAlignment;
  return kSlotAlignment * (SizeOf(form.dtype).count() / SizeOf(tensor.weight.dtype).count());
}

// Elements of a tensor in all forms but the weight.
int64_t UpdatedElements(const TensorSpec& tensor) {
  return tensor.role == TensorRole::kFixed ? 0 : tensor.elements;
}

void PlaceGradient(TensorSpec& tensor, ParamBlock& block) {
  Place(tensor.gradient, UpdatedElements(tensor), block.gradient_bytes,
        AlignmentOf(tensor, tensor.gradient));
}

}  // namespace

Bytes SampleTensor::per_sample() const {
  Bytes bytes = SizeOf(dtype);
  for (int64_t n : shape) bytes = TimesSaturated(bytes, n);
  return bytes;
}

int64_t ParamBlock::elements() const { return moment_bytes.count() / SizeOf(DType::kF32).count(); }

int64_t ModelSpec::parameter_count() const {
  int64_t count = 0;
  for (const ParamBlock& block : blocks) {
    for (const TensorSpec& tensor : block.tensors) count += tensor.elements;
  }
  return count;
}

int64_t ModelSpec::tied_parameter_count() const {
  int64_t count = 0;
  for (const ParamBlock& block : blocks) {
    if (!block.tied()) continue;
    for (const TensorSpec& tensor : block.tensors) count += tensor.elements;
  }
  return count;
}

bool HasStatistics(const ModelSpec& model) {
  for (const ParamBlock& block : model.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      if (tensor.role == TensorRole::kStatistic) return true;
    }
  }
  return false;
}

absl::InlinedVector<int, 8> BlocksCompletedBy(const ModelSpec& model, LayerRange layers) {
  absl::InlinedVector<int, 8> blocks;
  for (int layer = layers.last; layer >= layers.first; --layer) {
    for (int reference : model.layers[layer].references) {
      const int block = model.references[reference].block;
      if (CompletingLayer(model, block) == layer) blocks.push_back(block);
    }
  }
  std::sort(blocks.begin(), blocks.end(), std::greater<>());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

const TensorSpec* FindTensor(const ParamBlock& block, absl::string_view suffix) {
  for (const TensorSpec& tensor : block.tensors) {
    if (tensor.name == suffix || absl::EndsWith(tensor.name, absl::StrCat(".", suffix))) {
      return &tensor;
    }
  }
  return nullptr;
}

void AddTensor(ParamBlock& block, TensorSpec tensor) {
  tensor.elements = 1;
  for (int64_t n : tensor.shape) tensor.elements *= n;
  if (!block.tensors.empty()) {
    const TensorSpec& last = block.tensors.back();
    const int64_t end = last.init_position + last.elements;
    tensor.init_position = (end + kInitAlignment - 1) / kInitAlignment * kInitAlignment;
  }
  Place(tensor.weight, tensor.elements, block.weight_bytes);
  PlaceGradient(tensor, block);
  tensor.accumulator = tensor.gradient;
  block.accumulator_bytes = block.gradient_bytes;
  Place(tensor.moment, UpdatedElements(tensor), block.moment_bytes,
        AlignmentOf(tensor, tensor.moment));
  block.has_masters |= tensor.has_master();
  block.tensors.push_back(std::move(tensor));
}

int AddBlock(ModelSpec& model, ParamBlock block) {
  for (Bytes* size : {&block.accumulator_bytes, &block.gradient_bytes, &block.moment_bytes}) {
    *size = std::max(*size, Bytes(kSlotAlignment));
  }
  model.blocks.push_back(std::move(block));
  return static_cast<int>(model.blocks.size()) - 1;
}

void AddReference(ModelSpec& model, int layer, int block, bool needed_in_backward) {
  const int reference = static_cast<int>(model.references.size());
  model.references.push_back({layer, block, needed_in_backward});
  model.blocks[block].references.push_back(reference);
  model.layers[layer].references.push_back(reference);
}

void StoreGradientsAs(DType dtype, ModelSpec& model) {
  model.gradient_dtype = dtype;
  for (ParamBlock& block : model.blocks) {
    block.gradient_bytes = Bytes();
    for (TensorSpec& tensor : block.tensors) {
      if (tensor.has_master()) tensor.gradient.dtype = dtype;
      PlaceGradient(tensor, block);
    }
    block.gradient_bytes = std::max(block.gradient_bytes, Bytes(kSlotAlignment));
  }
}

}  // namespace harmony::model
