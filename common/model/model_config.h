#pragma once

// What a Hugging Face config.json says about an architecture, checked and with defaults filled in.
// PURE. Values here are all a worker needs, with the ModelSpec, to build the layers.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::model {

enum class Family { kGpt2, kLlama };  // kLlama: llama, mistral, qwen2, qwen3

enum class Activation { kGeluTanh, kGelu, kSilu, kRelu };

// Rotary embedding. `llama3` scaling as in transformers' `_compute_llama3_parameters`.
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;                  // llama3 only
  double high_freq_factor = 4.0;                 // llama3 only
  int64_t original_max_position_embeddings = 0;  // llama3 only
};

struct ModelConfig {
  Family family = Family::kGpt2;
  std::string model_type;  // "gpt2", "llama", "mistral", "qwen2", "qwen3"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // C
  int64_t num_layers = 0;         // transformer blocks
  int64_t num_heads = 0;          // H
  int64_t num_kv_heads = 0;       // grouped-query attention when below H
  int64_t head_dim = 0;           // D; H*D may differ from C (llama family)
  int64_t intermediate_size = 0;  // of the MLP
  int64_t max_position_embeddings = 0;
  double norm_epsilon = 1e-5;
  Activation activation = Activation::kGeluTanh;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;               // llama family: q, k, v projections
  bool attention_output_bias = false;  // llama family: o projection
  bool mlp_bias = false;
  bool qk_norm = false;  // qwen3: RMSNorm over head_dim of queries and keys
  RopeConfig rope;       // llama family
  // mistral: attention sees only so many positions back; 0: all of them. Harmless as long as no
  // sequence is longer: CheckSequenceLength.
  int64_t sliding_window = 0;
  double initializer_range = 0.02;
  double configured_dropout = 0;  // the largest dropout the file asks for; reported, not applied
};

// Parses config.json. InvalidArgument names the key and what was read; Unimplemented names a
// feature or architecture that is not supported (sliding windows, other rope types, mixtures of
// experts, ...): nothing that changes the result is ever ignored. `where` is put into messages (the
// file's path).
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view where);

// What a forward, a backward and a random init compute by, in one line: two configurations with the
// same text, padding token (PaddingToken) and tensors train alike.
std::string ArithmeticText(const ModelConfig& config);

// InvalidArgument when sequences of that length cannot be trained: longer than a gpt2 model's table
// of positions, or (Unimplemented) than a mistral model's sliding window. Names both numbers.
absl::Status CheckSequenceLength(const ModelConfig& config, int64_t sequence_length);

// Presets, e.g. "gpt2-124m": the config.json text of that model. NotFound lists the names there
// are.
absl::StatusOr<std::string> PresetConfigJson(absl::string_view name);
std::vector<std::string> PresetNames();

}  // namespace harmony::model
