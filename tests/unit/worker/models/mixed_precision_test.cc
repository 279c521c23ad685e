// The built-in layers in bf16 beside the same layers in fp32: losses and all gradients of a step.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/plain_trainer.h"

namespace harmony::worker {
namespace {

using ::harmony::testing_support::PlainTrainer;

constexpr char kGpt2[] = R"({"model_type": "gpt2", "vocab_size": 89, "n_positions": 32,
  "n_embd": 48, "n_layer": 2, "n_head": 3, "activation_function": "gelu_new",
  "tie_word_embeddings": true})";
// Grouped queries, untied.
constexpr char kLlama[] = R"({"model_type": "llama", "vocab_size": 89, "hidden_size": 48,
  "max_position_embeddings": 32, "intermediate_size": 74, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false,
  "rms_norm_eps": 1e-5, "hidden_act": "silu"})";
// Norms of queries and keys, a size of heads of its own.
constexpr char kQwen3[] = R"({"model_type": "qwen3", "vocab_size": 89, "hidden_size": 48,
  "max_position_embeddings": 32, "intermediate_size": 80, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "attention_bias": false,
  "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";

struct Family {
  const char* name;
  const char* config;
  bool portable = false;  // in bf16 computed as on devices other than the CPU
};

class MixedPrecisionTest : public ::testing::TestWithParam<Family> {
 protected:
  static constexpr int64_t kTokens = 24;

  static job::JobSpec Job(bool bf16) {
    job::JobSpec job;
    job.sequence_length = kTokens;
    job.global_batch_size = 4;
    job.micro_batch_size = 2;
    job.bf16 = bf16;
    return job;
  }

  MixedPrecisionTest() {
    for (PlainTrainer* trainer : {&wide_, &narrow_}) trainer->InitializeRandom(3);
    if (GetParam().portable) narrow_.ComputePortably();
    for (int64_t i = 0; i < 4 * kTokens; ++i) {
      tokens_.push_back(static_cast<int32_t>((i * i + 7) % 89));
      labels_.push_back(static_cast<int32_t>((i * 31 + 5) % 89));
    }
  }

  const model::ModelConfig config_ = *model::ParseModelConfig(GetParam().config, "config.json");
  PlainTrainer wide_{config_, Job(false)}, narrow_{config_, Job(true)};
  std::vector<int32_t> tokens_, labels_;
};

TEST_P(MixedPrecisionTest, GradientsAreThoseOfFp32WithinTheRoundingOfBf16) {
  const auto expected = wide_.AccumulateGradients(tokens_, labels_);
  const auto loss = narrow_.AccumulateGradients(tokens_, labels_);
  ASSERT_TRUE(expected.ok() && loss.ok()) << expected.status() << loss.status();
  EXPECT_NEAR(*loss, *expected, 2e-3 * *expected);
  EXPECT_NE(*loss, *expected) << "it is bf16 indeed";
  const model::ModelSpec &wide = wide_.model(), &narrow = narrow_.model();
  for (size_t reference = 0; reference < wide.references.size(); ++reference) {
    const int block = wide.references[reference].block;
    for (size_t t = 0; t < wide.blocks[block].tensors.size(); ++t) {
      const model::TensorSpec& tensor = wide.blocks[block].tensors[t];
      const auto part = [&](PlainTrainer& trainer, const model::ModelSpec& model) {
        return trainer.gradients(static_cast<int>(reference))
            .subspan(model.blocks[block].tensors[t].gradient.first_element(), tensor.elements);
      };
      const absl::Span<const float> a = part(wide_, wide), b = part(narrow_, narrow);
      double norm = 0, error = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        norm += static_cast<double>(a[i]) * a[i];
        error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
      }
      // A bias of keys has no gradient but rounding errors: softmax does not see it.
      EXPECT_LT(std::sqrt(error), 0.03 * std::sqrt(norm) + 1e-4) << tensor.name;
    }
  }
}

TEST_P(MixedPrecisionTest, TrainingFollowsThatInFp32) {
  for (int step = 0; step < 20; ++step) {
    const auto expected = wide_.Step(tokens_, labels_), got = narrow_.Step(tokens_, labels_);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_NEAR(got->loss, expected->loss, 5e-3 * expected->loss) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MixedPrecisionTest,
                         ::testing::Values(Family{"gpt2", kGpt2}, Family{"llama", kLlama},
                                           Family{"qwen3", kQwen3},
                                           Family{"gpt2_portable", kGpt2, true},
                                           Family{"llama_portable", kLlama, true},
                                           Family{"qwen3_portable", kQwen3, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace harmony::worker
