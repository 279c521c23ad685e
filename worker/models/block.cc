#include "worker/models/block.h"

namespace harmony::worker {

at::Tensor KeptPlace::Take(at::IntArrayRef shape) {
  int64_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  float* data = begin_ + size_.count() / static_cast<int64_t>(sizeof(float));
  size_ = (size_ + Bytes(elements * static_cast<int64_t>(sizeof(float)))).AlignUp(kSlotAlignment);
  return WrapFloat(data, shape);
}

std::unique_ptr<Block> MakeBlock(const model::ModelConfig& config) {
  return config.family == model::Family::kGpt2 ? MakeGpt2Block(config) : MakeLlamaBlock(config);
}

}  // namespace harmony::worker
