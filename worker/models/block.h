#pragma once

// One transformer block, by family. Stateless: weights come in through LayerParams, what the
// backward needs goes out as BlockSaved.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "common/model/model_config.h"
#include "worker/models/layer_params.h"

namespace harmony {

// One microbatch, or in a forward that keeps nothing several: hidden states are [samples * tokens,
// C].
struct BatchShape {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t microbatch = 0;  // samples of one
  int64_t rows() const { return samples * tokens; }
  int64_t microbatch_rows() const { return microbatch * tokens; }
};

// What a block's forward keeps for its backward, its input not included.
struct BlockSaved {
  virtual ~BlockSaved() = default;
};

class Block {
 public:
  virtual ~Block() = default;

  // Writes y [N, C] from x [N, C]. With keep == false nothing is kept and null is returned; y is
  // the same, bit for bit (of several microbatches: where rows of products are independent). With
  // keep == true an undefined y means that only what is kept is wanted: the last projection is then
  // left out.
  virtual std::unique_ptr<BlockSaved> Forward(const LayerParams& params, BatchShape shape,
                                              const at::Tensor& x, at::Tensor& y, bool keep) = 0;

  // Writes dx from dy, adds to the gradients. Frees what `saved` holds as it goes.
  virtual void Backward(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                        const at::Tensor& dy, std::unique_ptr<BlockSaved> saved,
                        at::Tensor& dx) = 0;
};

std::unique_ptr<Block> MakeGpt2Block(const ModelConfig& config);
std::unique_ptr<Block> MakeLlamaBlock(const ModelConfig& config);
std::unique_ptr<Block> MakeBlock(const ModelConfig& config);

}  // namespace harmony
