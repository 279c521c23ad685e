// A whole job through swapper, host worker and device workers, all of them processes, driven by the
// job runner: the same bits as the plain trainer, for every number of devices and grouping, also
// when processes are killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <tuple>

#include "common/base/random.h"
#include "common/model/families/causal_lm.h"
#include "common/plan/arena_layout.h"
#include "tests/support/fake_coordinator.h"
#include "tests/support/mini_coordinator.h"
#include "tests/support/plain_trainer.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::worker {
namespace {

constexpr char kConfig[] = R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 32,
  "n_embd": 32, "n_layer": 3, "n_head": 2, "activation_function": "gelu_new"})";
// Untied, grouped-query attention, head_dim of its own, query/key norm.
constexpr char kQwen3Config[] = R"({"model_type": "qwen3", "vocab_size": 256, "hidden_size": 32,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 48, "max_position_embeddings": 32, "hidden_act": "silu",
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "attention_bias": false})";
constexpr int64_t kTokens = 16;
constexpr int64_t kSteps = 4;

// Groups end before these layers; the model has layers 0..4.
std::vector<plan::LayerGroup> Groups(std::vector<int> ends, int devices) {
  std::vector<plan::LayerGroup> groups;
  int first = 0;
  for (int end : ends) {
    groups.push_back({{first, end - 1}, static_cast<int>(groups.size()) % devices});
    first = end;
  }
  return groups;
}

class TrainingTest : public ::testing::Test {
 protected:
  explicit TrainingTest(std::string config = kConfig)
      : config_(std::move(config)),
        model_config_(*model::ParseModelConfig(config_, "config.json")),
        model_(model::BuildModelSpec(model_config_, kTokens)) {
    SetComputeThreads(1);  // as JobSpec says: LayerNorm's gradients depend on it
    std::ofstream(folder_.path() + "/config.json") << config_;
    std::ofstream data(folder_.path() + "/data");
    CounterRandom random(3);
    for (int i = 0; i < 2000; ++i) data.put(static_cast<char>('a' + random.Below(26)));
  }

  testing_support::MiniJob Job(int devices, const std::vector<int>& ends,
                               double max_grad_norm = 0) {
    testing_support::MiniJob job;
    job.devices = "sim*" + std::to_string(devices) + ":mem=2MiB";
    job.config_json = config_;
    job.spec.model_name_or_path = folder_.path();
    job.spec.data_path = folder_.path() + "/data";
    job.spec.output_dir = folder_.path() + "/out" + std::to_string(next_run_++);
    job.spec.sequence_length = kTokens;
    job.spec.global_batch_size = 6;
    job.spec.micro_batch_size = 2;
    job.spec.virtual_replicas = 1;
    job.spec.max_steps = kSteps;
    job.spec.learning_rate = 1e-2;
    job.spec.max_grad_norm = max_grad_norm;
    job.steps = kSteps;
    plan::Plan& plan = job.plan;
    plan.num_microbatches = 3;
    plan.microbatch_size = 2;
    plan.sequence_length = kTokens;
    plan.backward_groups = Groups(ends, devices);
    plan.forward_groups = plan.backward_groups;
    plan.forward_groups.pop_back();
    plan.devices.assign(devices, {.memory = MiB(2), .resident = MiB(1)});
    plan.clip = max_grad_norm > 0;
    plan.update = plan.clip ? job::UpdateMode::kDeferred : job::UpdateMode::kEager;
    plan.gradient_ring = plan::ArenaLayout::DefaultRing(model_, plan);
    plan.gradient_ring = std::max(plan.gradient_ring, plan::ArenaLayout::MinimalRing(model_, plan));
    plan.arena_dynamic = plan::ArenaLayout(model_, plan).dynamic_bytes();
    return job;
  }

  // Losses and final weights of the plain trainer for the same job.
  struct Outcome {
    std::vector<double> losses;
    std::vector<std::vector<float>> weights;
  };
  Outcome Plain(const testing_support::MiniJob& job) {
    testing_support::MiniJob initial = job;
    initial.steps = 0;
    initial.spec.output_dir = folder_.path() + "/initial" + std::to_string(next_run_++);
    testing_support::MiniCoordinator coordinator(initial);
    EXPECT_EQ(coordinator.Run(), absl::OkStatus());
    testing_support::PlainTrainer trainer(model_config_, job.spec);
    for (size_t b = 0; b < model_.blocks.size(); ++b) {
      const std::vector<float> weights = coordinator.Weights(static_cast<int>(b));
      std::copy(weights.begin(), weights.end(), trainer.weights(static_cast<int>(b)).begin());
    }
    std::ifstream data(job.spec.data_path);
    const std::string text((std::istreambuf_iterator<char>(data)), {});
    Outcome outcome;
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<int32_t> tokens, labels;
      const int64_t begin = step * job.spec.global_batch_size * kTokens;
      for (int64_t i = 0; i < job.spec.global_batch_size * kTokens; ++i) {
        tokens.push_back(static_cast<uint8_t>(text[begin + i]));
        labels.push_back(static_cast<uint8_t>(text[begin + i + 1]));
      }
      outcome.losses.push_back(trainer.Step(tokens, labels)->loss);
    }
    for (size_t b = 0; b < model_.blocks.size(); ++b) {
      const auto weights = trainer.weights(static_cast<int>(b));
      outcome.weights.emplace_back(weights.begin(), weights.end());
    }
    return outcome;
  }

  void ExpectSame(const testing_support::MiniCoordinator& coordinator, const Outcome& expected) {
    EXPECT_EQ(coordinator.losses(), expected.losses);
    for (size_t b = 0; b < model_.blocks.size(); ++b) {
      const std::vector<float> weights = coordinator.Weights(static_cast<int>(b));
      EXPECT_EQ(
          std::memcmp(weights.data(), expected.weights[b].data(), weights.size() * sizeof(float)),
          0)
          << model_.blocks[b].name;
    }
  }

  const std::string config_;
  const model::ModelConfig model_config_;
  const model::ModelSpec model_;
  testing_support::TemporaryFolder folder_;
  int next_run_ = 0;
};

TEST_F(TrainingTest, OneDeviceOneGroup) {
  const testing_support::MiniJob job = Job(1, {5});
  testing_support::MiniCoordinator coordinator(job);
  ASSERT_EQ(coordinator.Run(), absl::OkStatus());
  ExpectSame(coordinator, Plain(job));
}

TEST_F(TrainingTest, EveryNumberOfDevicesAndGrouping) {
  const Outcome expected = Plain(Job(1, {5}));
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (int devices = 1; devices <= 3; ++devices) {
    for (const std::vector<int>& ends : {std::vector<int>{2, 5}, {1, 2, 4, 5}, {2, 3, 5}}) {
      SCOPED_TRACE(::testing::Message()
                   << devices << " devices, " << ::testing::PrintToString(ends));
      testing_support::MiniCoordinator coordinator(Job(devices, ends));
      ASSERT_EQ(coordinator.Run(), absl::OkStatus());
      ExpectSame(coordinator, expected);
    }
  }
}

TEST_F(TrainingTest, Clipping) {
  const Outcome expected = Plain(Job(1, {5}, 0.5));
  testing_support::MiniCoordinator coordinator(Job(2, {2, 3, 5}, 0.5));
  ASSERT_EQ(coordinator.Run(), absl::OkStatus());
  ExpectSame(coordinator, expected);
}

class Qwen3TrainingTest : public TrainingTest {
 protected:
  Qwen3TrainingTest() : TrainingTest(kQwen3Config) {}
};

TEST_F(Qwen3TrainingTest, AdamWAndSgd) {
  using job::OptimizerKind;
  for (const auto& [optim, momentum] :
       {std::pair(OptimizerKind::kAdamW, 0.0), std::pair(OptimizerKind::kSgd, 0.0),
        std::pair(OptimizerKind::kSgd, 0.9)}) {
    testing_support::MiniJob job = Job(3, {1, 3, 4, 5});
    job.spec.optim = optim;
    job.spec.momentum = momentum;
    job.plan.optimizer_moments = job::MomentsOf(job.spec);
    job.plan.arena_dynamic = plan::ArenaLayout(model_, job.plan).dynamic_bytes();
    testing_support::MiniCoordinator coordinator(job);
    ASSERT_EQ(coordinator.Run(), absl::OkStatus());
    job.spec.output_dir += "-plain";
    ExpectSame(coordinator, Plain(job));
  }
}

// Forward tasks of several microbatches, stashes on devices and on the host, kept weights; also
// when a worker dies. They change no bit.
TEST_F(TrainingTest, ForwardTasksOfSeveralMicrobatches) {
  Outcome expected;
  for (int task_microbatches : {2, 3, 6}) {
    for (int devices : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << devices << " devices, span " << task_microbatches);
      testing_support::MiniJob job = Job(devices, {1, 2, 4, 5});
      job.spec.micro_batch_size = job.plan.microbatch_size = 1;
      job.plan.num_microbatches = 6;
      job.plan.microbatches_per_forward_task = task_microbatches;
      job.plan.backward_groups[1].keep_stash = job.plan.backward_groups[3].keep_stash =
          task_microbatches == 3;
      job.plan.backward_groups[2].keep_weights = true;
      job.plan.arena_dynamic = plan::ArenaLayout(model_, job.plan).dynamic_bytes();
      if (expected.losses.empty()) expected = Plain(job);
      testing_support::MiniCoordinator coordinator(job);
      coordinator.OnEventNumber([&](int64_t number) {
        if (number == 40 * task_microbatches) coordinator.Kill({runner::Role::kWorker, 0});
      });
      ASSERT_EQ(coordinator.Run(), absl::OkStatus());
      ExpectSame(coordinator, expected);
    }
  }
}

// Backwards without recompute, for some groups or all; also when a worker dies.
class KeptActivationsTest : public TrainingTest {
 protected:
  explicit KeptActivationsTest(std::string config = kConfig) : TrainingTest(std::move(config)) {}

  void RunAll() {
    const Outcome expected = Plain(Job(1, {5}));
    int recoveries = 0;
    for (int devices : {1, 2}) {
      for (const std::vector<size_t>& kept : {std::vector<size_t>{1}, {0, 1, 2}}) {
        SCOPED_TRACE(::testing::Message() << devices << " devices, " << kept.size() << " kept");
        testing_support::MiniJob job = Job(devices, {2, 3, 4, 5});
        for (size_t group : kept) {
          plan::LayerGroup& keeper = job.plan.backward_groups[group];
          keeper.keep_stash = keeper.keep_activations = true;
        }
        job.plan.arena_dynamic = plan::ArenaLayout(model_, job.plan).dynamic_bytes();
        testing_support::MiniCoordinator coordinator(job);
        coordinator.OnEventNumber([&](int64_t number) {
          if (number == 60) coordinator.Kill({runner::Role::kWorker, 0});
        });
        ASSERT_EQ(coordinator.Run(), absl::OkStatus());
        recoveries += coordinator.generation() > 1;
        ExpectSame(coordinator, expected);
      }
    }
    EXPECT_GE(recoveries, 2);
  }
};

TEST_F(KeptActivationsTest, ChangeNoBit) { RunAll(); }

class Qwen3KeptActivationsTest : public KeptActivationsTest {
 protected:
  Qwen3KeptActivationsTest() : KeptActivationsTest(kQwen3Config) {}
};

TEST_F(Qwen3KeptActivationsTest, ChangeNoBit) { RunAll(); }

// Four replicas of two microbatches, each device with its share of them, or in a pipeline; weights,
// stashes and activations kept or not; also when a worker dies. The plain trainer sums as they do.
class ReplicasTrainingTest : public TrainingTest {
 protected:
  // Gradients leave in as few parts as each device can make by itself, or (`parts`) in so many,
  // which devices add up among themselves if these are fewer; -1: one group's in few, the next
  // one's in many.
  enum class Mode { kPipeline, kData, kMixed };
  testing_support::MiniJob ReplicaJob(Mode mode, int devices, bool keeps, double max_grad_norm,
                                      int parts = 0) {
    testing_support::MiniJob job = Job(devices, {1, 2, 4, 5}, max_grad_norm);
    job.spec.global_batch_size = 8;
    job.spec.micro_batch_size = 1;
    job.spec.virtual_replicas = 4;
    plan::Plan& plan = job.plan;
    plan.replicas = 4;
    plan.microbatch_size = 1;
    plan.num_microbatches = 8;
    for (std::vector<plan::LayerGroup>* groups : {&plan.forward_groups, &plan.backward_groups}) {
      for (plan::LayerGroup& group : *groups) {
        if (mode == Mode::kData) group.devices = plan::DeviceSet::First(devices);
        // Each its own set: all devices, one, three quarters of the work on one, or two.
        if (mode != Mode::kMixed) continue;
        const plan::DeviceSet sets[] = {
            plan::DeviceSet::First(devices), devices - 1, {0, 0, 0, devices - 1}, {devices - 1, 0}};
        group.devices = sets[group.layers.first % 4];
      }
    }
    plan::LayerGroup& keeper = plan.backward_groups[2];
    keeper.keep_weights = keeps;
    keeper.keep_stash = keeper.keep_activations = keeps && plan::CanKeepStash(plan, keeper);
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      plan::LayerGroup& group = plan.backward_groups[g];
      const int wanted = parts >= 0 ? parts : g % 2 == 0 ? 1 : 4;
      const bool can = parts > 0 && plan::CanAddUp(plan, group, parts);
      group.gradient_parts = can ? parts : std::max(wanted, group.devices.size());
    }
    plan::TieParts(model_, plan);
    plan.gradient_ring = plan::ArenaLayout::MinimalRing(model_, plan);
    plan.arena_dynamic = plan::ArenaLayout(model_, plan).dynamic_bytes();
    return job;
  }
};

TEST_F(ReplicasTrainingTest, SameBitsInBothModesOnAnyDevices) {
  const Outcome expected = Plain(ReplicaJob(Mode::kData, 1, false, 0));
  for (const auto& [mode, devices, parts, kill] : {std::tuple(Mode::kData, 1, 1, false),
                                                   {Mode::kData, 2, 2, true},
                                                   {Mode::kData, 2, 4, false},
                                                   {Mode::kData, 4, 4, false},
                                                   {Mode::kData, 2, 1, true},
                                                   {Mode::kData, 4, 2, false},
                                                   {Mode::kData, 4, 1, true},
                                                   {Mode::kPipeline, 2, 1, true},
                                                   {Mode::kPipeline, 2, 2, false},
                                                   {Mode::kPipeline, 2, -1, true},
                                                   {Mode::kMixed, 2, 1, true},
                                                   {Mode::kMixed, 4, -1, true}}) {
    SCOPED_TRACE(::testing::Message()
                 << static_cast<int>(mode) << " on " << devices << ", gradients in " << parts);
    testing_support::MiniCoordinator coordinator(ReplicaJob(mode, devices, devices == 2, 0, parts));
    coordinator.OnEventNumber([&, kills = kill](int64_t number) {
      if (kills && number == 90) coordinator.Kill({runner::Role::kWorker, 1});
    });
    ASSERT_EQ(coordinator.Run(), absl::OkStatus());
    EXPECT_EQ(coordinator.generation() > 1, kill);
    ExpectSame(coordinator, expected);
  }
}

TEST_F(ReplicasTrainingTest, Clipping) {
  const testing_support::MiniJob job = ReplicaJob(Mode::kData, 2, true, 0.5);
  testing_support::MiniCoordinator coordinator(job);
  ASSERT_EQ(coordinator.Run(), absl::OkStatus());
  ExpectSame(coordinator, Plain(job));
}

TEST_F(TrainingTest, KilledProcessesChangeNothing) {
  constexpr uint64_t kSeed = 4242;
  const Outcome expected = Plain(Job(1, {5}));
  CounterRandom random(kSeed);
  int recoveries = 0;  // a kill may come before the first generation or after the last command
  const runner::ProcessId processes[] = {{runner::Role::kSwapper, 0},
                                         {runner::Role::kHostWorker, 0},
                                         {runner::Role::kWorker, 0},
                                         {runner::Role::kWorker, 1}};
  for (const runner::ProcessId& victim : processes) {
    for (int round = 0; round < 3; ++round) {
      const int64_t moment = static_cast<int64_t>(4 + random.Below(120));
      const uint64_t second = random.Below(4);
      SCOPED_TRACE(::testing::Message()
                   << DebugString(victim) << ", then " << DebugString(processes[second])
                   << ", at event " << moment << ", seed " << kSeed);
      testing_support::MiniCoordinator coordinator(Job(2, {1, 2, 4, 5}));
      coordinator.OnEventNumber([&](int64_t number) {
        if (number == moment) coordinator.Kill(victim);
        if (number == moment + 9) coordinator.Kill(processes[second]);
      });
      ASSERT_EQ(coordinator.Run(), absl::OkStatus());
      recoveries += coordinator.generation() > 1;
      ExpectSame(coordinator, expected);
    }
  }
  EXPECT_GE(recoveries, 6);
}

}  // namespace
}  // namespace harmony::worker
