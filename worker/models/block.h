#pragma once

// One transformer block, by family. Stateless: weights come in through LayerParams, what the
// backward needs goes out as BlockSaved.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "common/base/units.h"
#include "common/model/model_config.h"
#include "worker/models/layer_params.h"
#include "worker/models/primitives.h"

namespace harmony::worker {

// What a block's forward keeps for its backward, its input not included.
struct BlockSaved {
  virtual ~BlockSaved() = default;
};

// Cuts a place into tensors, one behind the other, each at a multiple of kSlotAlignment.
class KeptPlace {
 public:
  KeptPlace(const Primitives& primitives, DeviceAddress begin, DType activations)
      : primitives_(primitives), begin_(begin), activations_(activations) {}
  at::Tensor Take(at::IntArrayRef shape) { return Take(shape, activations_); }
  // Of what is fp32 in any case: what norms and attention keep of a row.
  at::Tensor TakeStatistic(at::IntArrayRef shape) { return Take(shape, DType::kF32); }
  Bytes size() const { return size_; }

 private:
  at::Tensor Take(at::IntArrayRef shape, DType dtype);

  const Primitives& primitives_;
  const DeviceAddress begin_;
  const DType activations_;
  Bytes size_;
};

class Block {
 public:
  virtual ~Block() = default;

  // For a forward to fill: in memory that it takes as it goes or, where one is given, in a place of
  // KeptBlockBytes. For the backward of such a forward: what it left there.
  virtual std::unique_ptr<BlockSaved> NewSaved(BatchShape shape, DType activations,
                                               DeviceAddress place) const = 0;

  // Writes y [N, C] from x [N, C]. `saved` gets what the backward needs; null: nothing is kept, and
  // y is the same, bit for bit (of several microbatches: where rows of products are independent).
  // With it an undefined y means that only what is kept is wanted: the last projection is then left
  // out.
  virtual void Forward(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                       at::Tensor& y, BlockSaved* saved) = 0;

  // Writes dx from dy, adds to the gradients. Frees what `saved` holds as it goes.
  virtual void Backward(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                        const at::Tensor& dy, std::unique_ptr<BlockSaved> saved,
                        at::Tensor& dx) = 0;
};

// The primitives outlive the block.
std::unique_ptr<Block> MakeGpt2Block(const Primitives& with, const model::ModelConfig& config);
std::unique_ptr<Block> MakeLlamaBlock(const Primitives& with, const model::ModelConfig& config);
std::unique_ptr<Block> MakeBlock(const Primitives& with, const model::ModelConfig& config);

}  // namespace harmony::worker
