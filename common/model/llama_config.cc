// LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config of transformers: keys, defaults, options.
// Versions 4 and 5 write rotary embeddings differently:
//   4: rope_theta, rope_scaling: {rope_type or type, factor, ...}
//   5: rope_parameters: {rope_theta, rope_type, factor, ...}

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/model/config_reader.h"

namespace harmony::model {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

void ReadScaling(ConfigReader& reader, ConfigReader& scaling, const ModelConfig& config,
                 RopeConfig& rope) {
  const std::string type = scaling.Text("rope_type", scaling.Text("type", "default"));
  scaling.RefuseUnlessNumber("partial_rotary_factor", 1.0,
                             "rotary embedding of a part of the head");
  if (type == "default") {
    const bool typed = scaling.Has("rope_type") || scaling.Has("type");
    if (!typed) scaling.RefuseUnlessNumber("factor", 1.0, "scaling without a rope_type");
    return;
  }
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    rope.factor = scaling.RequiredNumber("factor", 1.0, kMaxFactor);
    return;
  }
  if (type != "llama3") {
    scaling.Refuse(scaling.Has("rope_type") ? "rope_type" : "type",
                   "known: default, linear, llama3");
    return;
  }
  rope.scaling = RopeConfig::Scaling::kLlama3;
  rope.factor = scaling.RequiredNumber("factor", 1.0, kMaxFactor);
  rope.low_freq_factor = scaling.RequiredNumber("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = scaling.RequiredNumber("high_freq_factor", 1e-6, kMaxFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.Reject("high_freq_factor", "it must be above low_freq_factor");
  }
  // transformers lets a value at the top level win, and falls back on max_position_embeddings.
  const int64_t inner =
      scaling.Size("original_max_position_embeddings", config.max_position_embeddings, kMaxInt32);
  rope.original_max_position_embeddings =
      reader.Size("original_max_position_embeddings", inner, kMaxInt32);
}

// True when the two objects say the same.
bool SameJson(const ConfigReader& reader, absl::string_view a, absl::string_view b) {
  return *reader.Find(a) == *reader.Find(b);
}

void ReadRope(ConfigReader& reader, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.theta = reader.Number("rope_theta", 10000.0, 1.0, kMaxTheta);
  reader.RefuseUnlessNumber("partial_rotary_factor", 1.0, "rotary embedding of a part of the head");
  if (reader.Has("rope_scaling") && reader.Has("rope_parameters") &&
      !SameJson(reader, "rope_scaling", "rope_parameters")) {
    reader.Reject("rope_scaling", "it contradicts 'rope_parameters'; keep one of the two");
    return;
  }
  for (absl::string_view key : {"rope_parameters", "rope_scaling"}) {
    std::optional<ConfigReader> object = reader.Object(key);
    if (!object.has_value()) continue;
    for (absl::string_view layer_type : {"full_attention", "sliding_attention"}) {
      if (object->Has(layer_type)) object->Refuse(layer_type, "rotary embedding by kind of layer");
    }
    const double theta = object->Number("rope_theta", rope.theta, 1.0, kMaxTheta);
    if (reader.Has("rope_theta") && theta != rope.theta) {
      object->Reject("rope_theta",
                     "it contradicts 'rope_theta' at the top level; keep one of them");
    }
    rope.theta = theta;
    ReadScaling(reader, *object, config, rope);
    reader.Adopt(object->status());
    return;
  }
}

// It goes into the embedding (padding_token.h).
void CheckPaddingToken(ConfigReader& reader, int64_t vocab_size) {
  const nlohmann::json* token = reader.Find("pad_token_id");
  if (token == nullptr) return;
  const bool fits = token->is_number_integer() && token->get<int64_t>() < vocab_size &&
                    token->get<int64_t>() >= -vocab_size;
  if (!fits) reader.Reject("pad_token_id", "it must be a token of the vocabulary");
}

void ReadHeads(ConfigReader& reader, ModelConfig& config) {
  const bool is_llama = config.model_type == "llama";
  int64_t default_kv_heads = config.num_heads;
  // Absent is not null: transformers' classes have defaults of their own.
  if (config.model_type == "mistral") default_kv_heads = 8;
  if (config.model_type == "qwen2" || config.model_type == "qwen3") default_kv_heads = 32;
  if (reader.IsNull("num_key_value_heads")) default_kv_heads = config.num_heads;
  config.num_kv_heads = reader.Size("num_key_value_heads", default_kv_heads, kMaxWidth);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.Reject(
        "num_attention_heads",
        absl::StrCat("it must be a multiple of num_key_value_heads (", config.num_kv_heads, ")"));
  }
  const bool has_head_dim = reader.Has("head_dim") || config.model_type == "qwen3";
  if (config.hidden_size % config.num_heads != 0 && (is_llama || !has_head_dim)) {
    reader.Reject("hidden_size", absl::StrCat("it must be a multiple of num_attention_heads (",
                                              config.num_heads, ")"));
  }
  const int64_t default_head_dim =
      config.model_type == "qwen3" ? 128
                                   : std::max<int64_t>(1, config.hidden_size / config.num_heads);
  config.head_dim = reader.Size("head_dim", default_head_dim, 65536);
  if (config.head_dim % 2 != 0) {
    reader.Reject(reader.Has("head_dim") ? "head_dim" : "hidden_size",
                  absl::StrCat("the size of a head (", config.head_dim,
                               ") must be even for rotary embedding"));
  }
}

void ReadSlidingWindow(ConfigReader& reader, ModelConfig& config) {
  if (config.model_type == "mistral") {
    const bool absent = !reader.Has("sliding_window") && !reader.IsNull("sliding_window");
    config.sliding_window = absent ? 4096 : reader.Size("sliding_window", 0, kMaxInt32);
  } else {
    // For the qwens `sliding_window` without this switch has no effect. A llama has no windows.
    reader.RefuseUnlessFalse("use_sliding_window", "attention over a sliding window");
    if (config.model_type == "llama") {
      config.sliding_window = reader.Size("sliding_window", 0, kMaxInt32);
    }
  }
  const nlohmann::json* types = reader.Find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != config.num_layers) {
    reader.Reject("layer_types", "it must be a list with one entry for each of num_hidden_layers");
    return;
  }
  for (const nlohmann::json& type : *types) {
    if (!type.is_string() || type.get<std::string>() != "full_attention") {
      reader.Refuse("layer_types", "known: full_attention");
      return;
    }
  }
}

// What transformers takes where config.json does not say.
int64_t UsualPositions(absl::string_view model_type) {
  if (model_type == "mistral") return 131072;
  return model_type == "llama" ? 2048 : 32768;
}

}  // namespace

void ParseLlamaConfig(ConfigReader& reader, ModelConfig& config) {
  config.family = Family::kLlama;
  config.vocab_size = reader.RequiredSize("vocab_size", kMaxInt32);
  config.hidden_size = reader.RequiredSize("hidden_size", kMaxWidth);
  config.num_layers = reader.RequiredSize("num_hidden_layers", kMaxLayers);
  config.num_heads = reader.RequiredSize("num_attention_heads", kMaxWidth);
  config.intermediate_size = reader.RequiredSize("intermediate_size", kMaxIntermediate);
  config.max_position_embeddings =
      reader.Size("max_position_embeddings", UsualPositions(config.model_type), kMaxInt32);
  ReadHeads(reader, config);
  config.norm_epsilon = reader.Number("rms_norm_eps", 1e-6, 0, 1);
  config.activation = ReadActivation(reader, "hidden_act", "silu");
  config.tie_word_embeddings = reader.Flag("tie_word_embeddings", false);
  config.initializer_range = reader.Number("initializer_range", 0.02, 0, 1e3);
  config.configured_dropout = reader.Number("attention_dropout", 0, 0, 1);
  ReadRope(reader, config);
  CheckPaddingToken(reader, config.vocab_size);
  ReadSlidingWindow(reader, config);

  const bool attention_bias = reader.Flag("attention_bias", false);
  const bool mlp_bias = reader.Flag("mlp_bias", false);
  if (config.model_type == "llama") {
    config.qkv_bias = config.attention_output_bias = attention_bias;
    config.mlp_bias = mlp_bias;
    return;
  }
  if (mlp_bias) reader.Refuse("mlp_bias", absl::StrCat(config.model_type, " has none"));
  if (config.model_type == "qwen3") {
    config.qkv_bias = config.attention_output_bias = attention_bias;
    config.qk_norm = true;
  } else if (config.model_type == "qwen2") {
    config.qkv_bias = true;  // always, and never on the output projection
  } else if (attention_bias) {
    reader.Refuse("attention_bias", absl::StrCat(config.model_type, " has none"));
  }
}

}  // namespace harmony::model
