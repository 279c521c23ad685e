#include "worker/models/embedding.h"

#include "absl/strings/str_cat.h"
#include "worker/models/kernels.h"

namespace harmony::worker {
namespace {

const char* TokenTable(const model::ModelConfig& config) {
  return config.family == model::Family::kGpt2 ? "wte.weight" : "embed_tokens.weight";
}

}  // namespace

absl::Status EmbeddingForward(const model::ModelConfig& config, const LayerParams& params,
                              BatchShape shape, const int32_t* token_ids, at::Tensor& y) {
  const at::Tensor table = params.Get(TokenTable(config)).weight;
  TORCH_CHECK(table.defined(), "the token table is not bound");
  const int64_t bad = WithNumbersOf(y, [&]<typename T>(T*) {
    return kernels::GatherRows(table.const_data_ptr<T>(), table.size(0), token_ids, shape.rows(),
                               config.hidden_size, y.mutable_data_ptr<T>());
  });
  if (bad >= 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "token id ", token_ids[bad], " at sequence ", bad / shape.tokens, ", position ",
        bad % shape.tokens, " of the microbatch is outside the vocabulary of ", table.size(0)));
  }
  if (config.family == model::Family::kGpt2) {
    const at::Tensor positions = params.Get("wpe.weight").weight;
    TORCH_CHECK(positions.defined(), "the position table is not bound");
    TORCH_CHECK(shape.tokens <= positions.size(0), "a sequence of ", shape.tokens,
                " tokens, but positions for ", positions.size(0));
    WithNumbersOf(y, [&]<typename T>(T*) {
      kernels::AddPositions(y.mutable_data_ptr<T>(), positions.const_data_ptr<T>(), shape.samples,
                            shape.tokens, config.hidden_size);
    });
  }
  return absl::OkStatus();
}

void EmbeddingBackward(const model::ModelConfig& config, const LayerParams& params,
                       BatchShape shape, const int32_t* token_ids, const at::Tensor& dy,
                       int64_t padding_token) {
  at::Tensor table = params.Get(TokenTable(config)).gradient;
  TORCH_CHECK(table.defined(), "the token table's gradient is not bound");
  WithNumbersOf(dy, [&]<typename T>(T*) {
    kernels::ScatterAddRows(table.mutable_data_ptr<float>(), token_ids, dy.const_data_ptr<T>(),
                            shape.rows(), config.hidden_size, padding_token);
  });
  if (config.family == model::Family::kGpt2) {
    at::Tensor positions = params.Get("wpe.weight").gradient;
    TORCH_CHECK(positions.defined(), "the position table's gradient is not bound");
    WithNumbersOf(dy, [&]<typename T>(T*) {
      kernels::SumPositions(positions.mutable_data_ptr<float>(), dy.const_data_ptr<T>(),
                            shape.samples, shape.tokens, config.hidden_size);
    });
  }
}

}  // namespace harmony::worker
