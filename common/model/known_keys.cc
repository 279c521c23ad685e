#include "common/model/known_keys.h"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/document/strict_json.h"

namespace harmony::model {
namespace {

// All sorted.
constexpr absl::string_view kAny[] = {"add_cross_attention",
                                      "alibi",
                                      "architectures",
                                      "attention_chunk_size",
                                      "attn_implementation",
                                      "auto_map",
                                      "bad_words_ids",
                                      "base_model_pp_plan",
                                      "base_model_tp_plan",
                                      "begin_suppress_tokens",
                                      "bos_token_id",
                                      "chunk_size_feed_forward",
                                      "clip_qkv",
                                      "compression_config",
                                      "cross_attention_hidden_size",
                                      "decoder_start_token_id",
                                      "diversity_penalty",
                                      "do_sample",
                                      "dtype",
                                      "early_stopping",
                                      "encoder_no_repeat_ngram_size",
                                      "eos_token_id",
                                      "exponential_decay_length_penalty",
                                      "finetuning_task",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "gradient_checkpointing",
                                      "id2label",
                                      "initializer_range",
                                      "is_decoder",
                                      "is_encoder_decoder",
                                      "keys_to_ignore_at_inference",
                                      "label2id",
                                      "length_penalty",
                                      "license",
                                      "mask_token_id",
                                      "max_length",
                                      "max_new_tokens",
                                      "min_length",
                                      "model_max_length",
                                      "model_type",
                                      "moe_intermediate_size",
                                      "n_routed_experts",
                                      "name_or_path",
                                      "no_repeat_ngram_size",
                                      "num_beam_groups",
                                      "num_beams",
                                      "num_experts",
                                      "num_experts_per_tok",
                                      "num_labels",
                                      "num_local_experts",
                                      "num_return_sequences",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_scores",
                                      "pad_token_id",
                                      "prefix",
                                      "problem_type",
                                      "pruned_heads",
                                      "quantization_config",
                                      "remove_invalid_values",
                                      "repetition_penalty",
                                      "return_dict",
                                      "return_dict_in_generate",
                                      "sep_token_id",
                                      "suppress_tokens",
                                      "task_specific_params",
                                      "temperature",
                                      "tf_legacy_loss",
                                      "tie_encoder_decoder",
                                      "tie_word_embeddings",
                                      "tokenizer_class",
                                      "top_k",
                                      "top_p",
                                      "torch_dtype",
                                      "torchscript",
                                      "transformers.js_config",
                                      "transformers_version",
                                      "trust_remote_code",
                                      "typical_p",
                                      "unk_token_id",
                                      "unsloth_fixed",
                                      "unsloth_version",
                                      "use_bfloat16",
                                      "use_cache",
                                      "use_qk_norm",
                                      "use_return_dict",
                                      "vocab_size"};
constexpr absl::string_view kGpt2[] = {"activation_function",
                                       "attn_pdrop",
                                       "embd_pdrop",
                                       "layer_norm_epsilon",
                                       "n_ctx",
                                       "n_embd",
                                       "n_head",
                                       "n_inner",
                                       "n_layer",
                                       "n_positions",
                                       "predict_special_tokens",
                                       "reorder_and_upcast_attn",
                                       "resid_pdrop",
                                       "scale_attn_by_inverse_layer_idx",
                                       "scale_attn_weights",
                                       "summary_activation",
                                       "summary_first_dropout",
                                       "summary_proj_to_labels",
                                       "summary_type",
                                       "summary_use_proj"};
constexpr absl::string_view kLlama[] = {"attention_bias",
                                        "attention_dropout",
                                        "head_dim",
                                        "hidden_act",
                                        "hidden_size",
                                        "intermediate_size",
                                        "is_llama_config",
                                        "layer_types",
                                        "max_position_embeddings",
                                        "max_window_layers",
                                        "mlp_bias",
                                        "num_attention_heads",
                                        "num_hidden_layers",
                                        "num_key_value_heads",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "pretraining_tp",
                                        "rms_norm_eps",
                                        "rope_parameters",
                                        "rope_scaling",
                                        "rope_theta",
                                        "sliding_window",
                                        "use_sliding_window"};

template <size_t kCount>
bool Contains(const absl::string_view (&keys)[kCount], absl::string_view key) {
  return std::binary_search(std::begin(keys), std::end(keys), key);
}

}  // namespace

bool IsKnownConfigKey(Family family, absl::string_view key) {
  if (absl::StartsWith(key, "_")) return true;  // transformers' own notes
  return Contains(kAny, key) ||
         (family == Family::kGpt2 ? Contains(kGpt2, key) : Contains(kLlama, key));
}

std::vector<std::string> UnknownConfigKeys(Family family, absl::string_view json) {
  std::vector<std::string> unknown;
  const absl::StatusOr<nlohmann::json> object = document::ParseStrictJson(json, "");
  if (!object.ok() || !object->is_object()) return unknown;
  for (const auto& [key, value] : object->items()) {
    const bool empty = value.is_null() || (value.is_structured() && value.empty());
    if (empty || value.is_boolean() || IsKnownConfigKey(family, key)) continue;
    unknown.push_back(absl::CHexEscape(key.substr(0, 60)));
  }
  return unknown;
}

}  // namespace harmony::model
