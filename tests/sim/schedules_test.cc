// Random models, plans, delays, deaths and full disks, from seeds. A failure prints its seed and
// how to run it alone:
//
//   build/tests/schedules_test --first_seed=S --seeds=1
//
// Default: 20 thousand schedules; a tenth of that under sanitizers.

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/sim/random_case.h"
#include "tests/support/arguments.h"

namespace harmony::sim {
namespace {

uint64_t first_seed = 1;
#if defined(__SANITIZE_THREAD__)
uint64_t seeds = 500;
#elif defined(__SANITIZE_ADDRESS__)
uint64_t seeds = 2'000;
#else
uint64_t seeds = 20'000;
#endif
bool check_derivable = false;

TEST(SchedulesTest, SurviveDeathsDelaysAndReorderings) {
  int64_t events = 0, generations = 0, failures = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    RandomCase c = MakeRandomCase(seed);
    c.options.check_derivable = check_derivable || seed % 64 == 0;
    const SimResult result = Simulate(c.model, c.plan, *c.costs, c.options);
    events += result.events;
    generations += result.generations;
    if (result.status.ok()) continue;
    ADD_FAILURE() << "seed " << seed << ": " << result.status << "\n"
                  << DebugString(c.plan) << "\nreplay: schedules_test --first_seed=" << seed
                  << " --seeds=1";
    if (++failures >= 5) break;
  }
  std::printf("%llu schedules, %lld events, %lld generations\n",
              static_cast<unsigned long long>(seeds), static_cast<long long>(events),
              static_cast<long long>(generations));
}

// Without faults the bytes moved are the minimum of the plan.
TEST(SchedulesTest, MoveNoMoreThanNecessary) {
  for (uint64_t seed = first_seed; seed < first_seed + std::min<uint64_t>(seeds, 2000); ++seed) {
    RandomCase c = MakeRandomCase(seed);
    c.options.kills = c.options.hangs = c.options.refusals = 0;
    c.options.stop_at_event = -1;
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
       {.name = "check_derivable", .on = &harmony::sim::check_derivable}});
}
