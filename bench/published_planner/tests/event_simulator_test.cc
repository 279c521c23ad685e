#include "bench/published_planner/cost_model/event_simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace harmony::published {
namespace {

using ::testing::ElementsAre;

// A layer with easy numbers: `backward_s` includes the recompute; nothing depends on the
// microbatch.
struct Row {
  int64_t weights, input;
  double forward_s, backward_s, update_s;
};

LayerProfile MakeProfile(const std::vector<Row>& rows) {
  LayerProfile p;
  p.forward.microbatch = p.backward.microbatch = {1};
  for (size_t l = 0; l < rows.size(); ++l) {
    p.param_bytes.push_back(rows[l].weights);
    p.grad_bytes.push_back(rows[l].weights);
    p.buffer_bytes.push_back(0);
    p.optimizer_state_bytes.push_back(0);
    p.update_time_s.push_back(rows[l].update_s);
    p.input_bytes_per_sample.push_back(rows[l].input);
    p.output_bytes_per_sample.push_back(l + 1 < rows.size() ? rows[l + 1].input : 0);
    p.forward.time_s.push_back({rows[l].forward_s});
    p.backward.time_s.push_back({rows[l].backward_s});
    p.forward.peak_bytes.push_back({10});
    p.backward.peak_bytes.push_back({20});
  }
  return p;
}

// Links at one byte a second for each of `gpus` busy GPUs, half a second of delay.
Machine SlowMachine(int gpus) {
  Machine machine;
  machine.gpus = gpus;
  machine.swap_bytes_per_s = gpus;
  machine.peer_bytes_per_s = 1;
  machine.host_message_bytes_per_s = 2 * gpus;
  machine.task_delay_s = 0.5;
  return machine;
}

// Weights 0-3, input 3-5, recompute 5-6, backward 6-9; input 9-11, recompute, backward 12-15;
// gradients 15-18, then the delay on the GPU beside the update on the CPU.
TEST(EventSimulatorTest, OneLayerOnOneGpu) {
  for (double update : {0.0, 10.0}) {
    const auto estimate = Simulate(MakeProfile({{3, 2, 1, 4, update}}), SlowMachine(1),
                                   Mode::kPipeline, 2, {1, 1, {}, {{0, 0}}}, Prefetch::kOff);
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    EXPECT_DOUBLE_EQ(estimate->time_s, update == 0 ? 18.5 : 28);
    EXPECT_EQ(estimate->swap_in_bytes, 3 + 2 * 2);
    EXPECT_EQ(estimate->swap_out_bytes, 3);
  }
}

// Two GPUs, one sample each: weights 0-3, input 3-5, compute 5-9, all-reduce of 2 * 1/2 * 3 bytes
// 9-12, gradients 12-15, delay.
TEST(EventSimulatorTest, DataParallelReducesBeforeItStores) {
  const auto estimate = Simulate(MakeProfile({{3, 2, 1, 4, 0.25}}), SlowMachine(2),
                                 Mode::kDataParallel, 2, {1, 1, {}, {{0, 0}}}, Prefetch::kOff);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_DOUBLE_EQ(estimate->time_s, 15.5);
  EXPECT_EQ(estimate->allreduce_bytes, 2 * 3);
  EXPECT_EQ(estimate->swap_in_bytes, 2 * (3 + 2));  // both GPUs
}

class TwoLayersOnTwoGpus : public testing::Test {
 protected:
  absl::StatusOr<Estimate> Run(Prefetch prefetch) {
    return Simulate(MakeProfile({{3, 1, 1, 3, 1}, {2, 2, 2, 6, 1}}), SlowMachine(2),
                    Mode::kPipeline, 2, {1, 1, {{0, 0}}, {{0, 0}, {1, 1}}}, prefetch);
  }
};

// GPU 0, forward of layer 0: weights 0-3; data 3-4, stash out 4-5, compute 5-6; 6-7, 7-8, 8-9;
// delay. GPU 1, layer 1: weights 0-2; input 6-8, compute 8-14; 14-16, 16-22; gradients 22-24;
// update 24-25. GPU 0, backward of layer 0: weights 9.5-12.5; stash 12.5-13.5, recompute to 14.5,
// gradient 14.5-16.5, backward to 18.5; 19.5, 20.5, gradient 22-24, 26; gradients 26-29, update
// 29-30.
TEST_F(TwoLayersOnTwoGpus, WithoutPrefetch) {
  const auto estimate = Run(Prefetch::kOff);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_DOUBLE_EQ(estimate->time_s, 30);
  EXPECT_THAT(estimate->gpu_end_s, ElementsAre(30, 25));
  EXPECT_EQ(estimate->swap_in_bytes, (3 + 1 + 1) + 2 + (3 + 1 + 1));
  EXPECT_EQ(estimate->swap_out_bytes, (1 + 1) + 2 + 3);
  EXPECT_EQ(estimate->peer_bytes, 2 * 2 + 2 * 2);
}

// GPU 0: data 0-1, weights 1-4 behind it, data 4-5; compute 4-5, 5-6 (stashes leave meanwhile).
// GPU 1: input 5-7, compute 7-13; input 7-9, compute 13-19; gradients 19-21.
// GPU 0: stash 5-6, weights 6-9, stash 9-10; recompute 9-10, gradient 13-15, backward 15-17;
// recompute 17-18, gradient 19-21, backward 21-23; gradients 23-26, update 26-27.
TEST_F(TwoLayersOnTwoGpus, WithPrefetch) {
  const auto estimate = Run(Prefetch::kOn);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_DOUBLE_EQ(estimate->time_s, 27);
}

TEST(EventSimulatorTest, PackMemoryCountsInnerInputsOnce) {
  LayerProfile profile = MakeProfile({{3, 1, 1, 3, 1}, {2, 4, 2, 6, 1}, {2, 5, 2, 6, 1}});
  const auto memory = MaxPackMemory(profile, {1, 1, {{0, 1}}, {{0, 1}, {2, 2}}});
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->forward_bytes, (10 - 1) + (10 - 4) + 1);
  EXPECT_EQ(memory->backward_bytes, (20 - 1) + (20 - 4) + 1);
}

// Ten layers by formula; the times come from a separate implementation (a general event graph,
// sorted topologically) that also reproduces every published schedule.
LayerProfile FormulaProfile() {
  constexpr int kLayers = 10, kSizes = 8;
  LayerProfile p;
  for (int64_t u = 1; u <= kSizes; ++u) {
    p.forward.microbatch.push_back(u);
    p.backward.microbatch.push_back(u);
  }
  for (int64_t l = 0; l < kLayers; ++l) {
    p.param_bytes.push_back(((l * 7919 + 13) % 97 + 3) * 1'000'000);
    p.grad_bytes.push_back(p.param_bytes.back());
    p.buffer_bytes.push_back(l % 3 * 50'000);
    p.optimizer_state_bytes.push_back(0);
    p.update_time_s.push_back(static_cast<double>((l * 5 + 1) % 7) * 0.01);
    p.input_bytes_per_sample.push_back(((l * 31 + 7) % 23 + 1) * 200'000);
    p.forward.time_s.emplace_back();
    p.backward.time_s.emplace_back();
    for (int u = 1; u <= kSizes; ++u) {
      p.forward.time_s[l].push_back(static_cast<double>((l * 17 + 5) % 13 + 2) * 0.002 * (u + 0.5));
      p.backward.time_s[l].push_back(3.1 * p.forward.time_s[l].back());
    }
    p.forward.peak_bytes.push_back(std::vector<int64_t>(kSizes, 1));
    p.backward.peak_bytes.push_back(std::vector<int64_t>(kSizes, 1));
  }
  return p;
}

struct TimedCase {
  Mode mode;
  int gpus;
  int64_t minibatch;
  Schedule schedule;
  double off_s, on_s;
  int64_t in, out;
};

std::vector<Pack> SingleLayers(int layers) {
  std::vector<Pack> packs;
  for (int l = 0; l < layers; ++l) packs.push_back({l, l});
  return packs;
}

std::vector<TimedCase> TimedPipelines() {
  return {
      {Mode::kPipeline,
       4,
       8,
       {2, 2, {{0, 2}, {3, 5}, {6, 7}}, {{0, 1}, {2, 4}, {5, 7}, {8, 9}}},
       2.772316329761882,
       2.7229600439263812,
       965200000,
       543050000},
      {Mode::kPipeline,
       3,
       8,
       {4, 2, {{0, 1}, {2, 3}, {4, 6}, {7, 8}}, {{0, 0}, {1, 2}, {3, 5}, {6, 8}, {9, 9}}},
       3.279867277877834,
       3.222563047661129,
       1061100000,
       611850000},
      {Mode::kPipeline,
       2,
       8,
       {2, 4, {{0, 4}, {5, 6}}, {{0, 2}, {3, 6}, {7, 9}}},
       3.7113906630682916,
       3.6714413688925642,
       941550000,
       581450000},
      {Mode::kPipeline,
       4,
       6,
       {3, 2, {{0, 3}}, {{0, 3}, {4, 9}}},
       3.225943391692854,
       3.2214730433347,
       710200000,
       555450000},
      {Mode::kPipeline,
       4,
       8,
       {1, 1, SingleLayers(9), SingleLayers(10)},
       3.194587134671843,
       3.1109455258054908,
       1109100000,
       659850000},
  };
}

std::vector<TimedCase> TimedSerialPlans() {
  return {
      {Mode::kPipeline,
       1,
       8,
       {4, 2, {{0, 3}, {4, 7}}, {{0, 3}, {4, 7}, {8, 9}}},
       6.600139114265854,
       6.5194744316183995,
       1051600000,
       629450000},
      {Mode::kPipeline,
       4,
       8,
       {1, 8, {}, {{0, 9}}},
       4.674843288923347,
       4.674843288923347,
       538250000,
       525450000},
      {Mode::kDataParallel,
       2,
       8,
       {4, 2, {{0, 4}, {5, 7}}, {{0, 2}, {3, 7}, {8, 9}}},
       3.6630416347117083,
       3.537677517711295,
       2 * 968400000,
       2 * 552650000},
      {Mode::kDataParallel,
       4,
       8,
       {2, 2, {{0, 5}}, {{0, 5}, {6, 9}}},
       2.2848190226451845,
       2.1590725581231958,
       4 * 790150000LL,
       4 * 536650000LL},
  };
}

class IndependentTimes : public testing::TestWithParam<TimedCase> {};

TEST_P(IndependentTimes, AreReproduced) {
  const TimedCase& c = GetParam();
  const LayerProfile profile = FormulaProfile();
  Machine machine;
  machine.gpus = c.gpus;
  const auto off = Simulate(profile, machine, c.mode, c.minibatch, c.schedule, Prefetch::kOff);
  const auto on = Simulate(profile, machine, c.mode, c.minibatch, c.schedule, Prefetch::kOn);
  ASSERT_TRUE(off.ok()) << off.status();
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_NEAR(off->time_s, c.off_s, 1e-12);
  EXPECT_NEAR(on->time_s, c.on_s, 1e-12);
  EXPECT_EQ(off->swap_in_bytes, c.in);
  EXPECT_EQ(off->swap_out_bytes, c.out);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, IndependentTimes, testing::ValuesIn(TimedPipelines()));
INSTANTIATE_TEST_SUITE_P(Serial, IndependentTimes, testing::ValuesIn(TimedSerialPlans()));

TEST(EventSimulatorTest, RefusesWhatMakesNoSense) {
  const LayerProfile profile = FormulaProfile();
  const Schedule good = {2, 2, {{0, 5}}, {{0, 5}, {6, 9}}};
  const auto error = [&](Schedule schedule, Machine machine = {}, int64_t minibatch = 8) {
    return std::string(
        Simulate(profile, machine, Mode::kPipeline, minibatch, schedule, Prefetch::kOff)
            .status()
            .message());
  };
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error({2, 2, {{0, 4}}, {{0, 5}, {6, 9}}}), testing::HasSubstr("pack_fwd covers 5"));
  EXPECT_THAT(error({2, 2, {{0, 5}}, {{0, 4}, {6, 9}}}), testing::HasSubstr("[6,9]"));
  EXPECT_THAT(error({3, 2, {{0, 5}}, {{0, 5}, {6, 9}}}), testing::HasSubstr("u_fwd 3"));
  EXPECT_THAT(error({2, 16, {{0, 5}}, {{0, 5}, {6, 9}}}, {}, 16), testing::HasSubstr("u_bwd 16"));
  EXPECT_THAT(error(good, {.gpus = 0}), testing::HasSubstr("gpus"));
  EXPECT_THAT(error(good, {.memory_bytes = 0}), testing::HasSubstr("memory"));
  EXPECT_THAT(error(good, {.swap_bytes_per_s = 0}), testing::HasSubstr("swap bandwidth"));
  EXPECT_THAT(error(good, {.peer_bytes_per_s = -1}), testing::HasSubstr("peer bandwidth"));
}

}  // namespace
}  // namespace harmony::published
