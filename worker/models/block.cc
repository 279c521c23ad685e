#include "worker/models/block.h"

namespace harmony {

std::unique_ptr<Block> MakeBlock(const ModelConfig& config) {
  return config.family == Family::kGpt2 ? MakeGpt2Block(config) : MakeLlamaBlock(config);
}

}  // namespace harmony
