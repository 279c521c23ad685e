#include "worker/layers/layer_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"
#include "tests/support/plain_trainer.h"
#include "worker/models/gemm_kernel.h"

namespace harmony::worker {
namespace {

using ::harmony::testing_support::AlignedFloats;
using ::harmony::testing_support::MakeRunner;
using ::harmony::testing_support::PlainTrainer;

constexpr int64_t kTokens = 24;

model::ModelConfig TinyGpt2() {
  model::ModelConfig c;
  c.family = model::Family::kGpt2;
  c.model_type = "gpt2";
  c.vocab_size = 97;
  c.hidden_size = 48;
  c.num_layers = 3;
  c.num_heads = c.num_kv_heads = 3;
  c.head_dim = 16;
  c.intermediate_size = 192;
  c.max_position_embeddings = 32;
  c.tie_word_embeddings = true;
  return c;
}

// Grouped queries, head_dim other than hidden/heads, llama3 scaling, untied.
model::ModelConfig TinyLlama() {
  model::ModelConfig c = TinyGpt2();
  c.family = model::Family::kLlama;
  c.model_type = "llama";
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.intermediate_size = 80;
  c.activation = model::Activation::kSilu;
  c.tie_word_embeddings = false;
  c.rope.scaling = model::RopeConfig::Scaling::kLlama3;
  c.rope.factor = 8;
  c.rope.original_max_position_embeddings = 16;
  return c;
}

// Biases, query/key norm, tied.
model::ModelConfig TinyQwen() {
  model::ModelConfig c = TinyLlama();
  c.model_type = "qwen3";
  c.tie_word_embeddings = true;
  c.qkv_bias = c.qk_norm = true;
  c.rope = model::RopeConfig();
  return c;
}

job::JobSpec Job() {
  job::JobSpec job;
  job.sequence_length = kTokens;
  job.global_batch_size = 4;
  job.micro_batch_size = 2;
  job.learning_rate = 1e-2;
  return job;
}

struct Batch {
  std::vector<int32_t> tokens, labels;
};

Batch RandomBatch(const job::JobSpec& job, int64_t vocabulary, uint64_t seed) {
  CounterRandom random(seed);
  Batch batch;
  for (int64_t i = 0; i < job.global_batch_size * job.sequence_length; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random.Below(vocabulary)));
    batch.labels.push_back(static_cast<int32_t>(random.Below(vocabulary)));
  }
  return batch;
}

std::vector<std::vector<float>> TrainedWeights(const model::ModelConfig& config,
                                               std::vector<model::LayerRange> groups,
                                               std::vector<double>* losses) {
  const job::JobSpec job = Job();
  PlainTrainer trainer(config, job, std::move(groups));
  trainer.InitializeRandom(7);
  for (int step = 0; step < 3; ++step) {
    const Batch batch = RandomBatch(job, config.vocab_size, step);
    const auto result = trainer.Step(batch.tokens, batch.labels);
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) losses->push_back(result->loss);
  }
  std::vector<std::vector<float>> weights;
  for (size_t b = 0; b < trainer.model().blocks.size(); ++b) {
    weights.emplace_back(trainer.weights(b).begin(), trainer.weights(b).end());
  }
  return weights;
}

class LayerRunnerTest : public ::testing::TestWithParam<model::ModelConfig> {
 protected:
  const model::ModelSpec model_ = model::BuildModelSpec(GetParam(), kTokens);
  CpuDevice device_;
  const std::unique_ptr<LayerRunner> runner_ =
      MakeRunner(model_, {.config = GetParam(), .tokens = kTokens}, device_);
};

// The derivative along the gradient is the gradient's squared norm: checks every tensor of every
// layer, without a reference implementation.
TEST_P(LayerRunnerTest, GradientsAreDerivatives) {
  job::JobSpec job = Job();
  job.virtual_replicas = 1;
  PlainTrainer trainer(GetParam(), job);
  trainer.InitializeRandom(3);
  const Batch batch = RandomBatch(job, GetParam().vocab_size, 11);
  ASSERT_TRUE(trainer.AccumulateGradients(batch.tokens, batch.labels).ok());
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    for (const model::TensorSpec& tensor : model_.blocks[b].tensors) {
      ASSERT_TRUE(trainer.AccumulateGradients(batch.tokens, batch.labels).ok());
      std::vector<float> gradient(tensor.elements, 0.0f);
      double squares = 0;
      for (int reference : model_.blocks[b].references) {
        for (int64_t i = 0; i < tensor.elements; ++i) {
          gradient[i] += trainer.gradients(reference)[tensor.weight.first_element() + i];
        }
      }
      for (float g : gradient) squares += static_cast<double>(g) * g;
      ASSERT_GT(squares, 0) << tensor.name;
      // A step along it that moves the loss by about 2 * 0.0005.
      const double scale = 0.0005 / squares;
      float* weights = trainer.weights(b).data() + tensor.weight.first_element();
      const std::vector<float> saved(weights, weights + tensor.elements);
      double loss[2];
      for (int side = 0; side < 2; ++side) {
        const double signed_scale = side == 0 ? scale : -scale;
        for (int64_t i = 0; i < tensor.elements; ++i) {
          weights[i] = static_cast<float>(saved[i] + signed_scale * gradient[i]);
        }
        loss[side] = trainer.AccumulateGradients(batch.tokens, batch.labels).value();
      }
      std::copy(saved.begin(), saved.end(), weights);
      EXPECT_NEAR((loss[0] - loss[1]) / 0.001, 1.0, 0.02) << tensor.name;
    }
  }
}

TEST_P(LayerRunnerTest, GroupingDoesNotChangeOneBit) {
  std::vector<double> losses;
  const auto weights = TrainedWeights(GetParam(), {}, &losses);
  const std::vector<std::vector<model::LayerRange>> groupings = {
      {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}},
      {{0, 1}, {2, 4}},
      {{0, 2}, {3, 3}, {4, 4}},
  };
  for (const auto& groups : groupings) {
    std::vector<double> other_losses;
    const auto other = TrainedWeights(GetParam(), groups, &other_losses);
    EXPECT_EQ(losses, other_losses);
    for (size_t b = 0; b < weights.size(); ++b) {
      EXPECT_EQ(0, std::memcmp(weights[b].data(), other[b].data(), weights[b].size() * 4))
          << model_.blocks[b].name;
    }
  }
}

// Outputs of all layers but the head, of `samples` sequences in tasks of `size`.
std::vector<float> Forwards(const model::ModelSpec& model, const model::ModelConfig& config,
                            PlainTrainer& trainer, LayerRunner& runner, int64_t tokens,
                            int64_t samples, int64_t size, int64_t microbatch) {
  const int layers = model.num_layers() - 1;
  const int64_t hidden = tokens * config.hidden_size;
  std::vector<float> all;
  for (int64_t first = 0; first < samples; first += size) {
    std::vector<int32_t> ids;
    for (int64_t i = first * tokens; i < (first + size) * tokens; ++i) {
      ids.push_back(static_cast<int32_t>(i * i % config.vocab_size));
    }
    GroupBinding b;
    b.layers = {0, layers - 1};
    b.samples = size;
    b.microbatch = microbatch;
    for (size_t reference = 0; reference < model.references.size(); ++reference) {
      if (model.references[reference].layer == layers) continue;
      b.references.push_back({static_cast<int>(reference),
                              AddressOf(trainer.weights(model.references[reference].block).data()),
                              {}});
    }
    b.batch = {AddressOf(ids.data())};
    std::vector<AlignedFloats> outputs;
    for (int layer = 0; layer < layers; ++layer) outputs.emplace_back(size * hidden);
    for (int layer = 0; layer < layers; ++layer) {
      b.outputs.push_back({layer + 1, outputs[layer].address()});
    }
    EXPECT_EQ(runner.RunForward(b), absl::OkStatus());
    all.resize(samples * hidden * layers);
    for (int layer = 0; layer < layers; ++layer) {
      std::copy_n(outputs[layer].data(), size * hidden,
                  all.begin() + (layer * samples + first) * hidden);
    }
  }
  return all;
}

// However many microbatches run at once, with products of either kind and any number of threads.
TEST_P(LayerRunnerTest, ForwardOfSeveralMicrobatchesChangesNoBit) {
  job::JobSpec job = Job();
  PlainTrainer trainer(GetParam(), job);
  trainer.InitializeRandom(13);
  for (int threads : {1, 3}) {
    SetComputeThreads(threads);
    for (bool rows_independent : {gemm::RowsIndependent(), false}) {
      // Sequences of a microbatch; their parts of a buffer begin at multiples of kSlotAlignment.
      for (const auto& [tokens, size] : {std::pair<int64_t, int64_t>{24, 1}, {4, 2}, {5, 4}}) {
        const int64_t samples = 12;
        const model::ModelSpec model = model::BuildModelSpec(GetParam(), tokens);
        const auto runner = MakeRunner(
            model, {.config = GetParam(), .tokens = tokens, .rows_independent = rows_independent},
            device_);
        const auto run = [&](int64_t at_once) {
          return Forwards(model, GetParam(), trainer, *runner, tokens, samples, at_once * size,
                          size);
        };
        const std::vector<float> expected = run(1);
        for (int64_t task_microbatches = 2; task_microbatches * size <= samples;
             ++task_microbatches) {
          if (samples % (task_microbatches * size) != 0) continue;
          const std::vector<float> found = run(task_microbatches);
          EXPECT_EQ(0, std::memcmp(expected.data(), found.data(), expected.size() * 4))
              << task_microbatches << " times " << size << " sequences of " << tokens << ", "
              << threads << " threads, rows independent: " << rows_independent;
        }
      }
    }
  }
  SetComputeThreads(1);
}

TEST_P(LayerRunnerTest, LossFallsOnOneBatch) {
  const job::JobSpec job = Job();
  PlainTrainer trainer(GetParam(), job);
  trainer.InitializeRandom(5);
  const Batch batch = RandomBatch(job, GetParam().vocab_size, 1);
  const double first = trainer.Step(batch.tokens, batch.labels).value().loss;
  EXPECT_NEAR(first, std::log(GetParam().vocab_size), 0.2);
  double last = first;
  for (int step = 0; step < 15; ++step) {
    last = trainer.Step(batch.tokens, batch.labels).value().loss;
  }
  EXPECT_LT(last, 0.8 * first);
}

TEST_P(LayerRunnerTest, NonFiniteWeightsAreReportedByLayer) {
  const job::JobSpec job = Job();
  PlainTrainer trainer(GetParam(), job, {{0, 1}, {2, 4}});
  trainer.InitializeRandom(5);
  const Batch batch = RandomBatch(job, GetParam().vocab_size, 1);
  // One value in the block of layer 3, which is inside the second group.
  const int block = model_.references[model_.layers[3].references[0]].block;
  trainer.weights(block)[model_.blocks[block].tensors.back().weight.first_element()] =
      std::numeric_limits<float>::infinity();
  const auto result = trainer.Step(batch.tokens, batch.labels);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("output of layer 3 is not finite"), std::string::npos)
      << result.status();
}

TEST_P(LayerRunnerTest, TokensBeyondTheVocabularyAreNamed) {
  const job::JobSpec job = Job();
  PlainTrainer trainer(GetParam(), job);
  trainer.InitializeRandom(5);
  Batch batch = RandomBatch(job, GetParam().vocab_size, 1);
  batch.tokens[kTokens + 3] = 97;
  const auto result = trainer.Step(batch.tokens, batch.labels);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(result.status().message().find("token id 97 at sequence 1, position 3"),
            std::string::npos)
      << result.status();
}

TEST_P(LayerRunnerTest, NonFiniteGradientsAreReportedAfterTheLastMicrobatch) {
  const int head = model_.num_layers() - 1;
  const int64_t hidden = kTokens * GetParam().hidden_size;
  AlignedFloats input(hidden), input_gradient(hidden);
  const std::vector<int32_t> labels(kTokens, 3);
  command::LossSlot loss;
  GroupBinding binding;
  binding.layers = {head, head};
  binding.samples = 1;
  std::vector<AlignedFloats> buffers;
  for (int reference : model_.layers[head].references) {
    const int64_t elements = model_.blocks[model_.references[reference].block].elements();
    buffers.emplace_back(elements);
    const DeviceAddress weights = buffers.back().address();
    buffers.emplace_back(elements);
    binding.references.push_back({reference, weights, buffers.back().address()});
  }
  binding.input = input.address();
  binding.input_gradient = input_gradient.address();
  binding.batch = {{}, AddressOf(labels.data())};
  binding.loss = {AddressOf(&loss), kTokens};
  // What earlier microbatches left.
  buffers[1].data()[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(runner_->RunForwardBackward(binding).ok());
  EXPECT_NEAR(loss.loss_sum, kTokens * std::log(GetParam().vocab_size), 1e-3);
  EXPECT_EQ(loss.label_count, kTokens);
  binding.stores_gradients = true;
  const absl::Status status = runner_->RunForwardBackward(binding);
  EXPECT_NE(status.message().find("weight gradient (head) of layer 4 is not finite"),
            std::string::npos)
      << status;
}

TEST_P(LayerRunnerTest, ThePaddingTokenGetsNoGradientAsAnInput) {
  job::JobSpec job;
  job.global_batch_size = job.micro_batch_size = 1;
  job.sequence_length = kTokens;
  std::vector<int32_t> tokens(kTokens), labels(kTokens, 1);
  for (int i = 0; i < kTokens; ++i) tokens[i] = i % 5;
  PlainTrainer with(GetParam(), job), without(GetParam(), job);
  without.set_padding_token(3);
  for (PlainTrainer* trainer : {&with, &without}) {
    trainer->InitializeRandom(1);
    ASSERT_TRUE(trainer->AccumulateGradients(tokens, labels).ok());
  }
  for (int64_t i = 0; i < static_cast<int64_t>(with.gradients(0).size()); ++i) {
    const bool padding = i / GetParam().hidden_size == 3;
    ASSERT_EQ(without.gradients(0)[i], padding ? 0 : with.gradients(0)[i]) << i;
  }
  EXPECT_NE(with.gradients(0)[3 * GetParam().hidden_size], 0);
}

// Several microbatches' activations are kept at a time; forwards and gradients have the bits of a
// backward that recomputes.
TEST_P(LayerRunnerTest, KeptActivationsChangeNoBit) {
  constexpr int kMicrobatches = 3, kSamples = 2;
  constexpr model::LayerRange layers{0, 3};
  const int64_t hidden = kSamples * kTokens * GetParam().hidden_size;
  CounterRandom random(19);
  const auto noise = [&](int64_t count, float scale) {
    AlignedFloats floats(count);
    for (int64_t i = 0; i < count; ++i) {
      floats.data()[i] = scale * static_cast<float>(random.NextDouble() - 0.5);
    }
    return floats;
  };
  std::vector<AlignedFloats> weights;
  for (const model::ParamBlock& block : model_.blocks)
    weights.push_back(noise(block.elements(), 0.3f));
  std::vector<int32_t> ids(kSamples * kTokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(97));
  const int64_t place = model::KeptActivationBytes(model_, layers, kSamples).count() / 4;
  std::vector<AlignedFloats> gradients[2], embedded, outputs, kept, douts;
  for (int m = 0; m < kMicrobatches; ++m) {
    douts.push_back(noise(hidden, 0.1f));
    kept.push_back(noise(place, 1.0f));
  }
  for (bool keep : {false, true}) {
    for (const model::ParameterReference& reference : model_.references) {
      gradients[keep].emplace_back(model_.blocks[reference.block].elements());
    }
    const auto bind = [&](int m) {
      GroupBinding binding;
      binding.layers = layers;
      binding.samples = kSamples;
      binding.batch = {AddressOf(ids.data())};
      for (int layer = layers.first; layer <= layers.last; ++layer) {
        for (int reference : model_.layers[layer].references) {
          binding.references.push_back({reference,
                                        weights[model_.references[reference].block].address(),
                                        gradients[keep][reference].address()});
        }
      }
      if (keep) binding.kept = kept[m].address();
      return binding;
    };
    for (int m = 0; m < kMicrobatches; ++m) {
      GroupBinding forward = bind(m);
      ids[0] = m;  // each microbatch another input
      embedded.emplace_back(hidden);
      outputs.emplace_back(hidden);
      forward.outputs = {{1, embedded.back().address()}, {4, outputs.back().address()}};
      ASSERT_TRUE(runner_->RunForward(forward).ok());
    }
    for (int m = 0; m < kMicrobatches; ++m) {
      GroupBinding backward = bind(m);
      ids[0] = m;
      backward.input = embedded[embedded.size() - kMicrobatches + m].address();
      backward.output_gradient = douts[m].address();
      backward.first_microbatch = m == 0;
      ASSERT_TRUE(runner_->RunBackward(backward).ok());
    }
  }
  for (int m = 0; m < kMicrobatches; ++m) {
    EXPECT_EQ(0, std::memcmp(outputs[m].data(), outputs[m + kMicrobatches].data(), hidden * 4));
  }
  for (size_t reference = 0; reference < model_.references.size(); ++reference) {
    if (model_.references[reference].layer > layers.last) continue;
    const int64_t count = model_.blocks[model_.references[reference].block].elements();
    const float* found = gradients[0][reference].data();
    EXPECT_EQ(0, std::memcmp(found, gradients[1][reference].data(), count * 4)) << reference;
    EXPECT_TRUE(std::any_of(found, found + count, [](float g) { return g != 0; }));
  }
}

TEST_P(LayerRunnerTest, AMissingBindingIsAnError) {
  GroupBinding binding;
  binding.layers = {1, 2};
  binding.samples = 1;
  EXPECT_EQ(runner_->RunForward(binding).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(runner_->RunBackward(binding).code(), absl::StatusCode::kInternal);
  binding.layers = {2, 4};
  EXPECT_EQ(runner_->RunForwardBackward(binding).code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Families, LayerRunnerTest,
                         ::testing::Values(TinyGpt2(), TinyLlama(), TinyQwen()),
                         [](const auto& info) { return info.param.model_type; });

}  // namespace
}  // namespace harmony::worker
