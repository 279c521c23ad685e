// Models by name: the config.json text of each, as transformers would write it.

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/document/nearest_name.h"
#include "common/model/model_config.h"

namespace harmony::model {
namespace {

struct Gpt2Preset {
  absl::string_view name;
  int vocab, positions, hidden, layers, heads;
};

constexpr std::array<Gpt2Preset, 8> kGpt2Presets = {{
    {"gpt2-124m", 50257, 1024, 768, 12, 12},
    {"gpt2-355m", 50257, 1024, 1024, 24, 16},
    {"gpt2-774m", 50257, 1024, 1280, 36, 20},
    {"gpt2-1.5b", 50257, 1024, 1600, 48, 25},
    {"gpt2-medium", 50257, 1024, 1024, 24, 16},
    {"gpt2-large", 50257, 1024, 1280, 36, 20},
    {"gpt2-xl", 50257, 1024, 1600, 48, 25},
    // Bytes as tokens; small enough to be trained on two cores in minutes.
    {"gpt2-mini", 256, 256, 192, 12, 6},
}};

std::string Gpt2Json(const Gpt2Preset& p) {
  // Byte-level models have no special tokens.
  const std::string eos = p.vocab == 50257 ? "50256" : "null";
  return absl::StrCat(R"({
  "activation_function": "gelu_new",
  "architectures": [
    "GPT2LMHeadModel"
  ],
  "attn_pdrop": 0.0,
  "bos_token_id": )",
                      eos, R"(,
  "embd_pdrop": 0.0,
  "eos_token_id": )",
                      eos, R"(,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2",
  "n_embd": )",
                      p.hidden, R"(,
  "n_head": )",
                      p.heads, R"(,
  "n_inner": null,
  "n_layer": )",
                      p.layers, R"(,
  "n_positions": )",
                      p.positions, R"(,
  "resid_pdrop": 0.0,
  "tie_word_embeddings": true,
  "torch_dtype": "float32",
  "vocab_size": )",
                      p.vocab, "\n}\n");
}

// Byte-level, grouped-query attention, untied.
constexpr absl::string_view kLlamaTiny = R"({
  "architectures": [
    "LlamaForCausalLM"
  ],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": null,
  "eos_token_id": null,
  "head_dim": 32,
  "hidden_act": "silu",
  "hidden_size": 192,
  "initializer_range": 0.02,
  "intermediate_size": 512,
  "max_position_embeddings": 1024,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 6,
  "num_hidden_layers": 6,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05,
  "rope_scaling": null,
  "rope_theta": 10000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "float32",
  "vocab_size": 256
}
)";

// Byte-level, tied, heads wider than hidden_size / num_attention_heads.
constexpr absl::string_view kQwen3Tiny = R"({
  "architectures": [
    "Qwen3ForCausalLM"
  ],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": null,
  "eos_token_id": null,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 192,
  "initializer_range": 0.02,
  "intermediate_size": 512,
  "max_position_embeddings": 1024,
  "model_type": "qwen3",
  "num_attention_heads": 4,
  "num_hidden_layers": 6,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000.0,
  "sliding_window": null,
  "tie_word_embeddings": true,
  "torch_dtype": "float32",
  "use_sliding_window": false,
  "vocab_size": 256
}
)";

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names = {"llama-tiny", "qwen3-tiny"};
  for (const Gpt2Preset& preset : kGpt2Presets) names.emplace_back(preset.name);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> PresetConfigJson(absl::string_view name) {
  if (name == "llama-tiny") return std::string(kLlamaTiny);
  if (name == "qwen3-tiny") return std::string(kQwen3Tiny);
  for (const Gpt2Preset& preset : kGpt2Presets) {
    if (preset.name == name) return Gpt2Json(preset);
  }
  const std::vector<std::string> names = PresetNames();
  const std::vector<absl::string_view> known(names.begin(), names.end());
  return absl::NotFoundError(
      absl::StrCat("no preset is called '", name, "' (there are: ", absl::StrJoin(names, ", "),
                   "; the nearest is ", document::NearestNames(name, known, 1).front(), ")"));
}

}  // namespace harmony::model
