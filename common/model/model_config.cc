#include "common/model/model_config.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/document/strict_json.h"
#include "common/model/config_reader.h"
#include "common/model/known_keys.h"

namespace harmony::model {
namespace {

// Keys of other architectures or of extensions that would change the result if they were ignored.
void RefuseForeignFeatures(ConfigReader& reader) {
  reader.RefuseUnlessFalse("is_encoder_decoder", "encoder-decoder models");
  reader.RefuseUnlessFalse("quantization_config", "quantised weights");
  reader.RefuseUnlessFalse("compression_config", "compressed weights");
  reader.RefuseUnlessFalse("auto_map", "models that bring their own code");
  reader.RefuseUnlessFalse("alibi", "ALiBi positions");
  reader.RefuseUnlessFalse("use_qk_norm", "query/key norm outside qwen3");
  reader.RefuseUnlessFalse("clip_qkv", "clipped projections");
  for (absl::string_view key : {"num_local_experts", "num_experts", "n_routed_experts",
                                "num_experts_per_tok", "moe_intermediate_size"}) {
    reader.RefuseUnlessNumber(key, 0, "mixtures of experts");
  }
  for (absl::string_view key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (reader.Has(key)) reader.Refuse(key, "soft-capped logits");
  }
  for (absl::string_view key : {"residual_multiplier", "embedding_multiplier", "logits_scaling",
                                "attention_multiplier", "logit_scale"}) {
    if (reader.Has(key)) reader.Refuse(key, "scaled residuals, embeddings or logits");
  }
  if (reader.Has("attention_chunk_size")) {
    reader.Refuse("attention_chunk_size", "attention within chunks");
  }
  if (reader.Has("no_rope_layers")) reader.Refuse("no_rope_layers", "layers without positions");
}

void CheckArchitectures(ConfigReader& reader) {
  const nlohmann::json* list = reader.Find("architectures");
  if (list == nullptr) return;
  if (!list->is_array()) {
    reader.Reject("architectures", "it must be a list of names");
    return;
  }
  for (const nlohmann::json& entry : *list) {
    const std::string name = entry.is_string() ? entry.get<std::string>() : "";
    if (absl::EndsWith(name, "LMHeadModel") || absl::EndsWith(name, "ForCausalLM") ||
        absl::EndsWith(name, "Model")) {
      continue;
    }
    reader.Refuse("architectures", "only causal language models can be trained");
    return;
  }
}

// A switch that nobody here knows may change the result.
void RefuseUnknownSwitches(const nlohmann::json& object, Family family, ConfigReader& reader) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_boolean() && value.get<bool>() && !IsKnownConfigKey(family, key)) {
      reader.Refuse(key, "an option that is not known; remove it if it changes nothing");
    }
  }
}

// Sizes that are each in range may still multiply to nonsense.
absl::Status CheckTotalSize(const ModelConfig& c, absl::string_view where) {
  using Wide = __int128;
  const Wide heads = Wide{c.num_heads} + 2 * Wide{c.num_kv_heads} + c.num_heads;
  const Wide block = heads * c.head_dim * c.hidden_size +
                     Wide{3} * c.intermediate_size * c.hidden_size + 16 * Wide{c.hidden_size};
  const Wide positions = c.family == Family::kGpt2 ? c.max_position_embeddings : 0;
  const Wide total =
      block * c.num_layers + (Wide{2} * c.vocab_size + positions + 2) * c.hidden_size;
  constexpr int64_t kMaxParameters = int64_t{1} << 42;
  if (total <= kMaxParameters) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": the sizes describe a model of over ", kMaxParameters,
                   " parameters; check vocab_size, the hidden sizes and the number of layers"));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json object, document::ParseStrictJson(json, where));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": must hold a JSON object"));
  }
  ConfigReader reader(object, where);
  if (!reader.Has("model_type")) reader.Reject("model_type", "it must be given");
  ModelConfig config;
  config.model_type = reader.Text("model_type", "");
  HARMONY_RETURN_IF_ERROR(reader.status());
  RefuseForeignFeatures(reader);
  CheckArchitectures(reader);
  if (config.model_type == "gpt2") {
    ParseGpt2Config(reader, config);
  } else if (config.model_type == "llama" || config.model_type == "mistral" ||
             config.model_type == "qwen2" || config.model_type == "qwen3") {
    ParseLlamaConfig(reader, config);
  } else {
    // Before any finding about one of its keys: the architecture is the better explanation.
    return absl::UnimplementedError(
        absl::StrCat(where, ": 'model_type' is \"", config.model_type.substr(0, 60),
                     "\": unknown architecture (known: gpt2, llama, mistral, qwen2, qwen3)"));
  }
  RefuseUnknownSwitches(object, config.family, reader);
  HARMONY_RETURN_IF_ERROR(reader.status());
  HARMONY_RETURN_IF_ERROR(CheckTotalSize(config, where));
  return config;
}

absl::Status CheckSequenceLength(const ModelConfig& config, int64_t sequence_length) {
  if (config.family == Family::kGpt2 && sequence_length > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence_length ", sequence_length, " is longer than the model's ",
        config.max_position_embeddings, " positions (n_positions in config.json); lower it"));
  }
  if (config.sliding_window > 0 && sequence_length > config.sliding_window) {
    return absl::UnimplementedError(absl::StrCat(
        "sequence_length ", sequence_length, " is longer than the model's sliding_window of ",
        config.sliding_window, ", and attention over a sliding window is not supported; lower it"));
  }
  return absl::OkStatus();
}

std::string ArithmeticText(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::string text;
  for (const int64_t number :
       {static_cast<int64_t>(config.family), config.vocab_size, config.hidden_size,
        config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim,
        config.intermediate_size, static_cast<int64_t>(config.activation),
        int64_t{config.tie_word_embeddings}, int64_t{config.qkv_bias},
        int64_t{config.attention_output_bias}, int64_t{config.mlp_bias}, int64_t{config.qk_norm},
        static_cast<int64_t>(rope.scaling), rope.original_max_position_embeddings}) {
    absl::StrAppend(&text, number, " ");
  }
  for (const double number : {config.norm_epsilon, config.initializer_range, rope.theta,
                              rope.factor, rope.low_freq_factor, rope.high_freq_factor}) {
    absl::StrAppendFormat(&text, "%.17g ", number);
  }
  return text;
}

}  // namespace harmony::model
