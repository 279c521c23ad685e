// GPT2Config of transformers: its keys, defaults and options.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/model/config_reader.h"

namespace harmony::model {

void ParseGpt2Config(ConfigReader& reader, ModelConfig& config) {
  config.family = Family::kGpt2;
  config.vocab_size = reader.RequiredSize("vocab_size", kMaxInt32);
  config.hidden_size = reader.RequiredSize("n_embd", kMaxWidth);
  config.num_layers = reader.RequiredSize("n_layer", kMaxLayers);
  config.num_heads = reader.RequiredSize("n_head", kMaxWidth);
  config.max_position_embeddings = reader.RequiredSize("n_positions", int64_t{1} << 26);
  config.intermediate_size = reader.Size("n_inner", 4 * config.hidden_size, kMaxIntermediate);
  config.num_kv_heads = config.num_heads;
  if (config.hidden_size % config.num_heads != 0) {
    reader.Reject("n_embd",
                  absl::StrCat("it must be a multiple of n_head (", config.num_heads, ")"));
  }
  config.head_dim = std::max<int64_t>(1, config.hidden_size / config.num_heads);
  config.norm_epsilon = reader.Number("layer_norm_epsilon", 1e-5, 0, 1);
  config.activation = ReadActivation(reader, "activation_function", "gelu_new");
  config.tie_word_embeddings = reader.Flag("tie_word_embeddings", true);
  config.initializer_range = reader.Number("initializer_range", 0.02, 0, 1e3);
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  for (absl::string_view key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    config.configured_dropout = std::max(config.configured_dropout, reader.Number(key, 0.1, 0, 1));
  }
  if (!reader.Flag("scale_attn_weights", true)) {
    reader.Refuse("scale_attn_weights", "attention without scaling by 1/sqrt(head size)");
  }
  reader.RefuseUnlessFalse("scale_attn_by_inverse_layer_idx", "attention scaled by layer");
  reader.RefuseUnlessFalse("reorder_and_upcast_attn", "attention in another order of operations");
  reader.RefuseUnlessFalse("add_cross_attention", "encoder-decoder models");
  reader.RefuseUnlessFalse("pruned_heads", "models with pruned heads");
}

}  // namespace harmony::model
