#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/model/known_keys.h"
#include "common/model/padding_token.h"

namespace harmony::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A config.json of `model_type` with the keys every one of the llama family has, and `more`.
std::string Llama(absl::string_view model_type, absl::string_view more = "") {
  return absl::StrCat(R"({"model_type": ")", model_type, R"(", "vocab_size": 1000,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128)",
                      more, "}");
}

std::string Gpt2(absl::string_view more = "") {
  return absl::StrCat(R"({"model_type": "gpt2", "vocab_size": 1000, "n_embd": 64, "n_layer": 2,
    "n_head": 4, "n_positions": 128)",
                      more, "}");
}

ModelConfig MustParse(const std::string& json) {
  auto config = ParseModelConfig(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig{};
}

void ExpectError(const std::string& json, absl::StatusCode code, absl::string_view part) {
  const auto config = ParseModelConfig(json, "dir/config.json");
  EXPECT_EQ(config.status().code(), code) << config.status();
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("dir/config.json"), HasSubstr(std::string(part))));
}

void ExpectRefused(const std::string& json, absl::string_view part) {
  ExpectError(json, absl::StatusCode::kUnimplemented, part);
}
void ExpectInvalid(const std::string& json, absl::string_view part) {
  ExpectError(json, absl::StatusCode::kInvalidArgument, part);
}

TEST(ModelConfigTest, EveryPresetParses) {
  for (const std::string& name : PresetNames()) {
    auto json = PresetConfigJson(name);
    ASSERT_TRUE(json.ok()) << name;
    const ModelConfig config = MustParse(*json);
    EXPECT_EQ(config.configured_dropout, 0) << name;
  }
  const auto unknown = PresetConfigJson("gpt2-125m");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("gpt2-124m"));
}

TEST(ModelConfigTest, Gpt2Defaults) {
  const ModelConfig c = MustParse(Gpt2());
  EXPECT_EQ(c.family, Family::kGpt2);
  EXPECT_EQ(c.intermediate_size, 256);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_DOUBLE_EQ(c.configured_dropout, 0.1);
  EXPECT_EQ(MustParse(Gpt2(R"(, "n_inner": 96)")).intermediate_size, 96);
}

TEST(ModelConfigTest, Gpt2OptionsThatAreNotBuiltAreNamed) {
  ExpectRefused(Gpt2(R"(, "scale_attn_weights": false)"), "scale_attn_weights");
  ExpectRefused(Gpt2(R"(, "scale_attn_by_inverse_layer_idx": true)"),
                "scale_attn_by_inverse_layer_idx");
  ExpectRefused(Gpt2(R"(, "reorder_and_upcast_attn": true)"), "reorder_and_upcast_attn");
  ExpectRefused(Gpt2(R"(, "add_cross_attention": true)"), "add_cross_attention");
  ExpectRefused(Gpt2(R"(, "activation_function": "mish")"), "activation_function");
  ExpectRefused(Gpt2(R"(, "quantization_config": {"bits": 4})"), "quantization_config");
  ExpectRefused(Gpt2(R"(, "architectures": ["GPT2ForSequenceClassification"])"), "architectures");
}

TEST(ModelConfigTest, HarmlessKeysAreAccepted) {
  MustParse(Gpt2(R"(, "scale_attn_weights": true, "add_cross_attention": false,
      "reorder_and_upcast_attn": false, "pruned_heads": {}, "n_ctx": 128, "use_cache": true,
      "summary_type": "cls_index", "summary_proj_to_labels": true, "summary_use_proj": true,
      "is_encoder_decoder": false, "dtype": "float32",
      "transformers_version": "5.23.0", "num_experts": null, "chunk_size_feed_forward": 0)"));
  MustParse(Llama("qwen2", R"(, "use_sliding_window": false, "sliding_window": 16,
      "max_window_layers": 1, "layer_types": ["full_attention", "full_attention"])"));
  MustParse(Llama("llama", R"(, "pretraining_tp": 2, "torch_dtype": "bfloat16")"));
}

TEST(ModelConfigTest, UnknownOptionsAreRefusedAndOtherUnknownKeysReported) {
  ExpectRefused(Llama("llama", R"(, "rope_interleaved": true)"), "'rope_interleaved' is true");
  ExpectRefused(Gpt2(R"(, "attn_output_gate": true)"), "'attn_output_gate' is true");
  ExpectRefused(Llama("llama", R"(, "attention_chunk_size": 8)"), "attention_chunk_size");
  const std::string odd =
      Llama("llama", R"(, "gate": false, "x": null, "y": {}, "_private": true, "norm_type": "b",
      "use_cache": true, "is_llama_config": true, "bos_token_id": [1, 2], "odd": 3)");
  MustParse(odd);
  EXPECT_THAT(UnknownConfigKeys(Family::kLlama, odd), ElementsAre("norm_type", "odd"));
  for (const std::string& name : PresetNames()) {
    const std::string json = *PresetConfigJson(name);
    EXPECT_THAT(UnknownConfigKeys(MustParse(json).family, json), IsEmpty()) << name;
  }
}

TEST(ModelConfigTest, PaddingTokens) {
  EXPECT_EQ(PaddingToken(Llama("llama", R"(, "pad_token_id": 3)")), 3);
  EXPECT_EQ(PaddingToken(Llama("llama", R"(, "pad_token_id": -1)")), 999);
  EXPECT_EQ(PaddingToken(Llama("qwen2", R"(, "pad_token_id": null)")), -1);
  EXPECT_EQ(PaddingToken(Llama("qwen2")), -1);
  EXPECT_EQ(PaddingToken(Gpt2(R"(, "pad_token_id": 3)")), -1);
  ExpectInvalid(Llama("llama", R"(, "pad_token_id": 1000)"), "'pad_token_id' is 1000");
}

TEST(ModelConfigTest, SizesThatMakeNoSenseAreNamed) {
  for (const char* value : {"0", "-4", "1e3", "\"64\"", "true", "99999999999999999999", "3"}) {
    const std::string json =
        absl::StrReplaceAll(Gpt2(), {{R"("n_embd": 64)", absl::StrCat(R"("n_embd": )", value)}});
    ExpectInvalid(json, "'n_embd'");
  }
  ExpectInvalid(absl::StrReplaceAll(Gpt2(), {{R"("n_layer": 2,)", ""}}), "'n_layer' is missing");
  ExpectInvalid(Llama("llama", R"(, "head_dim": 15)"), "'head_dim'");
  ExpectInvalid(Llama("llama", R"(, "rms_norm_eps": -1)"), "'rms_norm_eps'");
  ExpectInvalid(Llama("llama", R"(, "tie_word_embeddings": 1)"), "'tie_word_embeddings'");
  ExpectInvalid(absl::StrReplaceAll(Llama("llama"), {{R"("num_key_value_heads": 2)",
                                                      R"("num_key_value_heads": 3)"}}),
                "num_key_value_heads (3)");
  ExpectInvalid(
      absl::StrReplaceAll(Llama("llama"), {{R"("hidden_size": 64)", R"("hidden_size": 66)"}}),
      "'hidden_size'");
  ExpectInvalid(
      absl::StrReplaceAll(Gpt2(), {{R"("vocab_size": 1000)", R"("vocab_size": 2000000000)"},
                                   {R"("n_embd": 64)", R"("n_embd": 1048576)"}}),
      "parameters");
}

TEST(ModelConfigTest, TextThatIsNoConfigIsRefused) {
  ExpectInvalid("", "JSON");
  ExpectInvalid("{", "JSON");
  ExpectInvalid("[]", "object");
  ExpectInvalid("{}", "'model_type' is missing");
  ExpectInvalid(R"({"model_type": "gpt2", "model_type": "llama"})", "twice");
  ExpectInvalid(std::string(100'000, '['), "nested deeper");
  ExpectRefused(R"({"model_type": "mixtral", "num_local_experts": 8})", "unknown architecture");
}

TEST(ModelConfigTest, LlamaDefaultsFollowTransformers) {
  const ModelConfig c = MustParse(Llama("llama"));
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_DOUBLE_EQ(c.rope.theta, 10000);
  EXPECT_DOUBLE_EQ(c.norm_epsilon, 1e-6);
  const std::string no_kv =
      absl::StrReplaceAll(Llama("llama"), {{R"("num_key_value_heads": 2,)", ""}});
  EXPECT_EQ(MustParse(no_kv).num_kv_heads, 4);
  EXPECT_EQ(MustParse(Llama("qwen3")).head_dim, 128);
}

TEST(ModelConfigTest, PositionsThatAreNotGivenAreThoseOfTheArchitecture) {
  for (const auto& [type, positions] : std::vector<std::pair<std::string, int64_t>>{
           {"llama", 2048}, {"mistral", 131072}, {"qwen2", 32768}, {"qwen3", 32768}}) {
    const auto config = ParseModelConfig(
        absl::StrCat(R"({"model_type": ")", type,
                     R"(", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
                         "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
                         "intermediate_size": 8, "sliding_window": null})"),
        "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->max_position_embeddings, positions) << type;
  }
}

TEST(ModelConfigTest, BiasesAndNormsByArchitecture) {
  const ModelConfig llama =
      MustParse(Llama("llama", R"(, "attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.attention_output_bias && llama.mlp_bias);
  const ModelConfig qwen2 = MustParse(Llama("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_output_bias || qwen2.qk_norm);
  const ModelConfig qwen3 = MustParse(Llama("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_TRUE(MustParse(Llama("qwen3", R"(, "attention_bias": true)")).attention_output_bias);
  ExpectRefused(Llama("mistral", R"(, "attention_bias": true)"), "attention_bias");
}

TEST(ModelConfigTest, RopeAtEitherPlace) {
  EXPECT_DOUBLE_EQ(MustParse(Llama("llama", R"(, "rope_theta": 500000.0)")).rope.theta, 5e5);
  EXPECT_DOUBLE_EQ(
      MustParse(Llama("llama", R"(, "rope_parameters": {"rope_theta": 500000, "rope_type":
      "default"})"))
          .rope.theta,
      5e5);
  const std::string llama3 = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3")";
  for (const std::string& more :
       {absl::StrCat(R"(, "rope_theta": 500000.0, "rope_scaling": {)", llama3, "}"),
        absl::StrCat(R"(, "rope_parameters": {"rope_theta": 500000.0, )", llama3, "}")}) {
    const RopeConfig rope = MustParse(Llama("llama", more)).rope;
    EXPECT_DOUBLE_EQ(rope.theta, 5e5);
    EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kLlama3);
    EXPECT_DOUBLE_EQ(rope.factor, 8);
    EXPECT_DOUBLE_EQ(rope.high_freq_factor, 4);
    EXPECT_EQ(rope.original_max_position_embeddings, 8192);
  }
  const RopeConfig linear =
      MustParse(Llama("llama", R"(, "rope_scaling": {"type": "linear", "factor": 2.0})")).rope;
  EXPECT_EQ(linear.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_DOUBLE_EQ(linear.factor, 2);
}

TEST(ModelConfigTest, RopeThatIsNotSupportedOrContradictsIsNamed) {
  ExpectRefused(Llama("llama", R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4})"),
                "rope_scaling.rope_type");
  ExpectRefused(Llama("llama", R"(, "rope_parameters": {"rope_type": "dynamic"})"), "dynamic");
  ExpectRefused(Llama("llama", R"(, "partial_rotary_factor": 0.5)"), "partial_rotary_factor");
  ExpectRefused(Llama("llama", R"(, "rope_scaling": {"factor": 2.0})"), "rope_scaling.factor");
  ExpectInvalid(Llama("llama", R"(, "rope_scaling": {"rope_type": "linear"})"),
                "'rope_scaling.factor' is missing");
  ExpectInvalid(Llama("llama", R"(, "rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6})"),
                "contradicts");
}

TEST(ModelConfigTest, SlidingWindows) {
  const ModelConfig mistral = MustParse(Llama("mistral", R"(, "sliding_window": 32)"));
  EXPECT_TRUE(CheckSequenceLength(mistral, 32).ok());
  EXPECT_EQ(CheckSequenceLength(mistral, 33).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(MustParse(Llama("mistral", R"(, "sliding_window": null)")).sliding_window, 0);
  EXPECT_EQ(MustParse(Llama("mistral")).sliding_window, 4096);
  ExpectRefused(Llama("qwen2", R"(, "use_sliding_window": true)"), "use_sliding_window");
  ExpectRefused(Llama("llama", R"(, "use_sliding_window": true)"), "use_sliding_window");
  EXPECT_EQ(CheckSequenceLength(MustParse(Llama("llama", R"(, "sliding_window": 8)")), 9).code(),
            absl::StatusCode::kUnimplemented);
  ExpectRefused(Llama("qwen3", R"(, "layer_types": ["full_attention", "sliding_attention"])"),
                "layer_types");
  EXPECT_EQ(CheckSequenceLength(MustParse(Gpt2()), 129).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckSequenceLength(MustParse(Gpt2()), 128).ok());
}

}  // namespace
}  // namespace harmony::model
