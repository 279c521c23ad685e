#include "worker/models/builtin_layers.h"

#include <gtest/gtest.h>

#include <string>

#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"
#include "tests/support/layer_harness.h"
#include "worker/device/cpu_device.h"

namespace harmony::worker {
namespace {

using ::harmony::testing_support::LayerCase;
using ::harmony::testing_support::LayerHarness;

struct Shape {
  const char* name;
  const char* config;
  int64_t samples, tokens;
};

constexpr char kGpt2[] = R"({"model_type": "gpt2", "vocab_size": 89, "n_positions": 32,
  "n_embd": 24, "n_layer": 1, "n_head": 3, "activation_function": "gelu_new",
  "tie_word_embeddings": true})";
// Widths that are no multiples of a vector.
constexpr char kOddGpt2[] = R"({"model_type": "gpt2", "vocab_size": 89, "n_positions": 32,
  "n_embd": 21, "n_layer": 1, "n_head": 3, "n_inner": 37, "activation_function": "gelu",
  "tie_word_embeddings": false})";
// Grouped queries, untied.
constexpr char kLlama[] = R"({"model_type": "llama", "vocab_size": 89, "hidden_size": 24,
  "max_position_embeddings": 32, "intermediate_size": 37, "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false,
  "rms_norm_eps": 1e-5, "hidden_act": "silu"})";
// Norms of queries and keys, a size of heads of its own, tied.
constexpr char kQwen3[] = R"({"model_type": "qwen3", "vocab_size": 89, "hidden_size": 24,
  "max_position_embeddings": 32, "intermediate_size": 40, "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "attention_bias": false,
  "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";

class BuiltinLayersTest : public ::testing::TestWithParam<Shape> {
 protected:
  BuiltinLayersTest() {
    const model::ModelConfig config = *model::ParseModelConfig(GetParam().config, "config.json");
    subject_.model = model::BuildModelSpec(config, GetParam().tokens);
    subject_.layers =
        MakeBuiltinLayers(subject_.model, {.config = config, .tokens = GetParam().tokens}, device_);
    subject_.device = &device_;
    subject_.samples = GetParam().samples;
    portable_.model = subject_.model;
    portable_.layers = MakeBuiltinLayers(
        subject_.model, {.config = config, .tokens = GetParam().tokens, .portable = true}, device_);
    portable_.device = &device_;
    portable_.samples = GetParam().samples;
  }

  CpuDevice device_;
  LayerCase subject_, portable_;
};

constexpr int kHead = 2;

TEST_P(BuiltinLayersTest, GradientsAreDerivatives) {
  for (int layer = 0; layer <= kHead; ++layer) {
    LayerHarness(subject_, layer).GradientsAreDerivatives();
  }
}

TEST_P(BuiltinLayersTest, KeptEqualsRecomputed) {
  for (LayerCase* layers : {&subject_, &portable_}) {
    for (int layer = 0; layer < kHead; ++layer) LayerHarness(*layers, layer).KeptEqualsRecomputed();
  }
}

// What other devices compute, run on the CPU.
TEST_P(BuiltinLayersTest, PortableLayersAgree) {
  for (int layer = 0; layer <= kHead; ++layer) LayerHarness(portable_, layer).AgreesWith(subject_);
}

TEST_P(BuiltinLayersTest, TheDescriptionKnowsWhatIsKept) {
  for (int layer = 0; layer <= kHead; ++layer) {
    EXPECT_EQ(subject_.layers[layer]->KeptBytes(subject_.samples),
              model::KeptTensorBytes(subject_.model.cost_of(layer), subject_.samples));
  }
}

TEST_P(BuiltinLayersTest, GradientsAccumulate) {
  for (LayerCase* layers : {&subject_, &portable_}) {
    for (int layer = 0; layer <= kHead; ++layer) LayerHarness(*layers, layer).GradientsAccumulate();
  }
}

TEST_P(BuiltinLayersTest, SeveralMicrobatchesEqualOneByOne) {
  for (int layer = 0; layer < kHead; ++layer) {
    LayerHarness(subject_, layer).SeveralMicrobatchesEqualOneByOne();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, BuiltinLayersTest,
    ::testing::Values(Shape{"gpt2", kGpt2, 2, 16}, Shape{"gpt2_odd", kOddGpt2, 3, 7},
                      Shape{"gpt2_one_token", kGpt2, 1, 1}, Shape{"llama", kLlama, 2, 16},
                      Shape{"llama_odd", kLlama, 3, 5}, Shape{"qwen3", kQwen3, 3, 9}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace harmony::worker
