#include "worker/models/embedding.h"

#include "absl/strings/str_cat.h"

namespace harmony::worker {
namespace {

const char* TokenTable(const model::ModelConfig& config) {
  return config.family == model::Family::kGpt2 ? "wte.weight" : "embed_tokens.weight";
}

}  // namespace

absl::Status EmbeddingForward(const Primitives& with, const model::ModelConfig& config,
                              const LayerParams& params, BatchShape shape,
                              const at::Tensor& token_ids, at::Tensor& y) {
  const at::Tensor table = params.Get(TokenTable(config)).weight;
  TORCH_CHECK(table.defined(), "the token table is not bound");
  const int64_t bad = with.GatherRows(table, token_ids, y);
  if (bad >= 0) {
    return absl::OutOfRangeError(
        absl::StrCat("token id ", token_ids[bad].item<int32_t>(), " at sequence ",
                     bad / shape.tokens, ", position ", bad % shape.tokens,
                     " of the microbatch is outside the vocabulary of ", table.size(0)));
  }
  if (config.family == model::Family::kGpt2) {
    const at::Tensor positions = params.Get("wpe.weight").weight;
    TORCH_CHECK(positions.defined(), "the position table is not bound");
    TORCH_CHECK(shape.tokens <= positions.size(0), "a sequence of ", shape.tokens,
                " tokens, but positions for ", positions.size(0));
    with.AddPositions(y, positions, shape);
  }
  return absl::OkStatus();
}

void EmbeddingBackward(const Primitives& with, const model::ModelConfig& config,
                       const LayerParams& params, BatchShape shape, const at::Tensor& token_ids,
                       const at::Tensor& dy, int64_t padding_token) {
  at::Tensor table = params.Get(TokenTable(config)).gradient;
  TORCH_CHECK(table.defined(), "the token table's gradient is not bound");
  with.ScatterAddRows(table, token_ids, dy, padding_token);
  if (config.family == model::Family::kGpt2) {
    at::Tensor positions = params.Get("wpe.weight").gradient;
    TORCH_CHECK(positions.defined(), "the position table's gradient is not bound");
    with.SumPositions(positions, dy, shape);
  }
}

}  // namespace harmony::worker
