#include "worker/models/block.h"

#include <c10/util/accumulate.h>

namespace harmony::worker {

at::Tensor KeptPlace::Take(at::IntArrayRef shape, DType dtype) {
  const DeviceAddress at = begin_ + size_;
  size_ = (size_ + SizeOf(dtype) * c10::multiply_integers(shape)).AlignUp(kSlotAlignment);
  return primitives_.Wrap(at, dtype, shape);
}

std::unique_ptr<Block> MakeBlock(const Primitives& with, const model::ModelConfig& config) {
  return config.family == model::Family::kGpt2 ? MakeGpt2Block(with, config)
                                               : MakeLlamaBlock(with, config);
}

}  // namespace harmony::worker
