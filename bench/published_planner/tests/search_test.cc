// The search against brute force and against its bounds, on random instances.

#include "bench/published_planner/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "bench/published_planner/cost_model/event_simulator.h"
#include "bench/published_planner/search/annealing.h"
#include "bench/published_planner/search/enumeration.h"
#include "bench/published_planner/search/lower_bound.h"
#include "bench/published_planner/search/serial_plan.h"
#include "bench/published_planner/tests/random_profile.h"
#include "tests/support/sanitized.h"

namespace harmony::published {
namespace {

struct Instance {
  LayerProfile profile;
  Machine machine;
  Mode mode = Mode::kPipeline;
  int64_t minibatch = 0;
};

// Up to 8 layers, 3 GPUs, 4 microbatches; memory between hardly enough and plenty.
Instance SmallInstance(CounterRandom& random, Mode mode) {
  Instance instance;
  instance.mode = mode;
  instance.machine.gpus = IntBetween(random, mode == Mode::kPipeline ? 2 : 1, 3);
  const int64_t samples = IntBetween(random, 1, 4);
  instance.minibatch = mode == Mode::kPipeline ? samples : samples * instance.machine.gpus;
  const int layers = IntBetween(random, 2, 8);
  instance.profile = RandomProfile(random, layers, samples);
  int64_t least = 0, all = 0;
  for (const auto& peaks : instance.profile.backward.peak_bytes) {
    least = std::max(least, peaks.front());
    all += peaks.back();
  }
  instance.machine.memory_bytes =
      least + static_cast<int64_t>(Between(random, 0, 1.2) * static_cast<double>(all - least));
  return instance;
}

// Calls `take` with every way to cut the layers before `end`.
void ForAllPacks(int end, std::vector<Pack>& packs,
                 const std::function<void(const std::vector<Pack>&)>& take) {
  const int first = packs.empty() ? 0 : packs.back().last + 1;
  if (first == end) return take(packs);
  for (int last = first; last < end; ++last) {
    packs.push_back({first, last});
    ForAllPacks(end, packs, take);
    packs.pop_back();
  }
}

// The best time of all schedules that fit, by the event simulator.
double BruteForce(const Instance& in) {
  double best = std::numeric_limits<double>::infinity();
  const int64_t samples = SamplesPerTask(in.mode, in.machine.gpus, in.minibatch);
  Schedule schedule;
  std::vector<Pack> backward;
  const auto take = [&](const std::vector<Pack>& forward) {
    schedule.forward = forward;
    const auto memory = MaxPackMemory(in.profile, schedule);
    if (std::max(memory->forward_bytes, memory->backward_bytes) > in.machine.memory_bytes) return;
    const auto estimate =
        Simulate(in.profile, in.machine, in.mode, in.minibatch, schedule, Prefetch::kOff);
    best = std::min(best, estimate->time_s);
  };
  for (int64_t u_fwd = 1; u_fwd <= samples; ++u_fwd) {
    for (int64_t u_bwd = 1; u_bwd <= samples; ++u_bwd) {
      if (samples % u_fwd != 0 || samples % u_bwd != 0) continue;
      schedule.u_fwd = u_fwd;
      schedule.u_bwd = u_bwd;
      ForAllPacks(in.profile.layers(), backward, [&](const std::vector<Pack>& packs) {
        schedule.backward = packs;
        std::vector<Pack> forward;
        ForAllPacks(packs.back().first, forward, take);
      });
    }
  }
  return best;
}

void ExpectOptimal(const Instance& in) {
  const auto found = Search(in.profile, in.machine, in.mode, in.minibatch, {});
  const double best = BruteForce(in);
  if (best == std::numeric_limits<double>::infinity()) {
    EXPECT_TRUE(absl::IsResourceExhausted(found.status())) << found.status();
    return;
  }
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_NEAR(found->time_s, best, 1e-9 * best);
  EXPECT_LE(found->lower_bound_s, best * (1 + 1e-9));
  const auto memory = MaxPackMemory(in.profile, found->schedule);
  ASSERT_TRUE(memory.ok());
  EXPECT_LE(memory->forward_bytes, in.machine.memory_bytes);
  EXPECT_LE(memory->backward_bytes, in.machine.memory_bytes);
}

TEST(SearchTest, NothingBeatsItsPipelines) {
  for (uint64_t stream = 0; stream < 40; ++stream) {
    SCOPED_TRACE(Replay(stream));
    CounterRandom random(TestSeed(), stream);
    ExpectOptimal(SmallInstance(random, Mode::kPipeline));
  }
}

TEST(SearchTest, NothingBeatsItsDataParallelPlans) {
  for (uint64_t stream = 1000; stream < 1040; ++stream) {
    SCOPED_TRACE(Replay(stream));
    CounterRandom random(TestSeed(), stream);
    ExpectOptimal(SmallInstance(random, Mode::kDataParallel));
  }
}

// The search enumerates chains as short as these itself; annealing must find the same without.
TEST(SearchTest, AnnealingFindsTheOptimumOfSmallPipelines) {
  for (uint64_t stream = 0; stream < (testing_support::kSanitized ? 4 : 30); ++stream) {
    SCOPED_TRACE(Replay(stream));
    CounterRandom random(TestSeed(), stream);
    const Instance in = SmallInstance(random, Mode::kPipeline);
    const auto costs = MakePackCosts(in.profile, in.machine, in.minibatch, in.minibatch, 1);
    ASSERT_TRUE(costs.ok());
    const EnumerationResult best = TryAllCuts(*costs, in.machine.gpus);
    if (best.evaluations == 0) continue;
    Cuts start;  // single layers
    for (int l = 0; l < in.profile.layers(); ++l) start.backward.push_back(l);
    start.forward.assign(start.backward.begin(), start.backward.end() - 1);
    if (!Fits(start, *costs)) continue;
    AnnealingOptions options;
    options.steps = 10'000'000;
    options.hot = 0.1;
    EXPECT_NEAR(Anneal(*costs, in.machine.gpus, start, options).time_s, best.time_s,
                1e-9 * best.time_s);
  }
}

TEST(SearchTest, TheBoundIsABoundOnRandomSchedules) {
  int timed = 0;
  for (uint64_t stream = 2000; stream < 4000; ++stream) {
    SCOPED_TRACE(Replay(stream));
    CounterRandom random(TestSeed(), stream);
    Instance in = SmallInstance(random, Mode::kPipeline);
    in.machine.gpus = IntBetween(random, 2, 6);
    const int64_t samples = in.minibatch;
    const int64_t u_fwd = random.Below(2) == 0 ? samples : 1;
    const int64_t u_bwd = random.Below(2) == 0 ? samples : 1;
    const auto costs = MakePackCosts(in.profile, in.machine, samples, u_fwd, u_bwd);
    ASSERT_TRUE(costs.ok());
    const double bound = PipelineLowerBound(*costs, in.machine.gpus);
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Cuts cuts = RandomCuts(random, in.profile.layers());
      if (!Fits(cuts, *costs)) continue;
      ++timed;
      const auto estimate = Simulate(in.profile, in.machine, in.mode, in.minibatch,
                                     ToSchedule(cuts, *costs), Prefetch::kOff);
      ASSERT_TRUE(estimate.ok()) << estimate.status();
      EXPECT_LE(bound, estimate->time_s * (1 + 1e-9));
    }
  }
  EXPECT_GT(timed, 1000);
}

TEST(SearchTest, SerialTimeEqualsTheEventSimulator) {
  for (uint64_t stream = 4000; stream < 6000; ++stream) {
    SCOPED_TRACE(Replay(stream));
    CounterRandom random(TestSeed(), stream);
    const Instance in =
        SmallInstance(random, random.Below(4) == 0 ? Mode::kPipeline : Mode::kDataParallel);
    Machine machine = in.machine;
    if (in.mode == Mode::kPipeline) machine.gpus = 1;
    const int64_t samples = SamplesPerTask(in.mode, machine.gpus, in.minibatch);
    const int64_t u_fwd = random.Below(2) == 0 ? samples : 1;
    const int64_t u_bwd = random.Below(2) == 0 ? samples : 1;
    const auto costs = MakePackCosts(in.profile, machine, samples, u_fwd, u_bwd);
    ASSERT_TRUE(costs.ok());
    const Cuts cuts = RandomCuts(random, in.profile.layers());
    const auto estimate = Simulate(in.profile, machine, in.mode, in.minibatch,
                                   ToSchedule(cuts, *costs), Prefetch::kOff);
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    EXPECT_NEAR(SerialTime(*costs, MakeSerialMachine(machine, in.mode), cuts), estimate->time_s,
                1e-9 * estimate->time_s);
  }
}

TEST(SearchTest, TheOrderOfTheWorkDoesNotMatter) {
  CounterRandom random(TestSeed());
  const LayerProfile profile = RandomProfile(random, 24, 8);
  Machine machine;
  machine.memory_bytes = int64_t{1} << 40;
  SearchOptions options;
  options.steps = 3'000'000;
  const auto forwards = Search(profile, machine, Mode::kPipeline, 16, options);
  options.for_each = [](int count, const std::function<void(int)>& body) {
    for (int i = count - 1; i >= 0; --i) body(i);
  };
  const auto backwards = Search(profile, machine, Mode::kPipeline, 16, options);
  ASSERT_TRUE(forwards.ok()) << forwards.status();
  ASSERT_TRUE(backwards.ok()) << backwards.status();
  EXPECT_EQ(forwards->schedule, backwards->schedule);
  EXPECT_EQ(forwards->evaluations, backwards->evaluations);
}

TEST(SearchTest, SaysWhatDoesNotFit) {
  CounterRandom random(TestSeed());
  const LayerProfile profile = RandomProfile(random, 6, 4);
  const auto error = [&](Machine machine, Mode mode, int64_t minibatch) {
    return std::string(Search(profile, machine, mode, minibatch, {}).status().message());
  };
  EXPECT_THAT(error({.memory_bytes = 1}, Mode::kPipeline, 4), testing::HasSubstr("does not fit"));
  EXPECT_THAT(error({.memory_bytes = 1}, Mode::kDataParallel, 4),
              testing::HasSubstr("does not fit"));
  EXPECT_THAT(error({.gpus = 3}, Mode::kDataParallel, 4), testing::HasSubstr("does not divide"));
  EXPECT_THAT(error({}, Mode::kPipeline, 0), testing::HasSubstr("minibatch"));
}

}  // namespace
}  // namespace harmony::published
