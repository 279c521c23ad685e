// Random models, plans, delays, deaths, stops, lost streams, commands that fail and full disks,
// from seeds. A failure prints its seed and how to run it alone:
//
//   build/tests/schedules_test --first_seed=S --seeds=1
//
// Default: 20 thousand schedules that are always the same, and 10 thousand from a seed that is
// another one each time (`--fresh`); a tenth of that under sanitizers.

#include <cstdio>
#include <random>

#include "gtest/gtest.h"
#include "tests/sim/random_case.h"
#include "tests/support/arguments.h"

namespace harmony::sim {
namespace {

uint64_t first_seed = 1;
#if defined(__SANITIZE_THREAD__)
uint64_t seeds = 500, fresh = 100;
#elif defined(__SANITIZE_ADDRESS__)
uint64_t seeds = 2'000, fresh = 500;
#else
uint64_t seeds = 20'000, fresh = 10'000;
#endif
bool check_derivable = false;

uint64_t FreshSeed() {
  std::random_device device;
  return 1'000'000'000 + device() % 1'000'000'000;  // far from the fixed ones
}

struct Tried {
  uint64_t schedules = 0;
  int64_t events = 0, generations = 0;
  SeenFaults seen;
};

// Stops at the fifth failure.
Tried TrySchedules(uint64_t first, uint64_t count) {
  Tried tried;
  int failures = 0;
  for (uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    RandomCase c = MakeRandomCase(seed);
    c.options.check_derivable = check_derivable || seed % 64 == 0;
    const SimResult result = Simulate(c.model, c.plan, *c.costs, c.options);
    ++tried.schedules;
    tried.events += result.events;
    tried.generations += result.generations;
    tried.seen.Add(result.seen);
    if (result.status.ok()) continue;
    ADD_FAILURE() << "seed " << seed << ": " << result.status << "\n"
                  << DebugString(c.plan) << "\nreplay: schedules_test --first_seed=" << seed
                  << " --seeds=1";
    ++failures;
  }
  std::printf("%llu schedules, %lld events, %lld generations\n",
              static_cast<unsigned long long>(tried.schedules),
              static_cast<long long>(tried.events), static_cast<long long>(tried.generations));
  return tried;
}

TEST(SchedulesTest, SurviveDeathsStopsDelaysAndReorderings) {
  const Tried tried = TrySchedules(first_seed, seeds);
  for (int i = 0; i < kSeenKinds; ++i) {
    const auto kind = static_cast<Seen>(i);
    std::printf("%10lld %s\n", static_cast<long long>(tried.seen[kind]), NameOf(kind));
    if (seeds < 2'000) continue;  // too few, or a replay
    EXPECT_GT(tried.seen[kind], 0) << NameOf(kind);
  }
}

// Schedules that nobody has tried before, each time others.
TEST(SchedulesTest, SurviveFreshSchedules) {
  if (fresh == 0 || first_seed != 1) GTEST_SKIP() << "a replay";
  const uint64_t base = FreshSeed();
  std::printf("fresh seeds from %llu\n", static_cast<unsigned long long>(base));
  TrySchedules(base, fresh);
}

// Without faults the bytes moved are the minimum of the plan.
TEST(SchedulesTest, MoveNoMoreThanNecessary) {
  for (uint64_t seed = first_seed; seed < first_seed + std::min<uint64_t>(seeds, 2000); ++seed) {
    RandomCase c = MakeRandomCase(seed);
    RemoveFaults(c.options);
    const SimResult result = Simulate(c.model, c.plan, *c.costs, c.options);
    ASSERT_TRUE(result.status.ok()) << "seed " << seed << ": " << result.status;
    const plan::MinimalSwap minimal = plan::ComputeMinimalSwap(c.model, c.plan);
    auto moved = [&](command::TrafficClass traffic) {
      return Bytes(result.moved_bytes[static_cast<size_t>(traffic)]);
    };
    const int64_t steps = c.options.end_step;
    ASSERT_EQ(moved(command::TrafficClass::kWeights), minimal.weights * steps) << "seed " << seed;
    ASSERT_EQ(moved(command::TrafficClass::kGradients), minimal.gradients * steps)
        << "seed " << seed;
    ASSERT_EQ(moved(command::TrafficClass::kStash), minimal.stash * steps) << "seed " << seed;
    ASSERT_EQ(moved(command::TrafficClass::kBoundaryCommit), minimal.boundary_commit * steps)
        << "seed " << seed;
    ASSERT_EQ(moved(command::TrafficClass::kTokens), minimal.tokens * steps) << "seed " << seed;
    ASSERT_EQ(moved(command::TrafficClass::kRecovery), Bytes(0)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace harmony::sim

int main(int argc, char** argv) {
  return harmony::testing_support::RunAllTests(
      argc, argv,
      {{.name = "first_seed", .number = &harmony::sim::first_seed},
       {.name = "seeds", .number = &harmony::sim::seeds},
       {.name = "fresh", .number = &harmony::sim::fresh},
       {.name = "check_derivable", .on = &harmony::sim::check_derivable}});
}
