#include "coordinator/planner/report/bottleneck.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/planner/timing/random_costs.h"

namespace harmony::planner {
namespace {

// It goes from the end of a step back to its beginning whatever the tasks on it stalled behind.
TEST(BottleneckTest, TheChainThatMakesAStepIsNoLongerThanTheStep) {
  double covered = 0;
  constexpr uint64_t kCases = 500;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const sim::RandomCase c = sim::MakeRandomCase(seed);
    const auto costs = RandomCosts(c, seed);
    const absl::StatusOr<Estimate> estimate =
        EvaluatePlan(c.model, c.plan, *costs, {.steps = 3, .keep_timeline = true});
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    const Bottleneck bottleneck = BottleneckOf(*estimate, static_cast<int>(c.plan.devices.size()));
    Nanos chain;
    for (const LaneLoad& lane : bottleneck.lanes) {
      if (!absl::StrContains(lane.name, "together")) chain += lane.on_the_chain;
    }
    const Nanos step = estimate->step_end - estimate->step_begin;
    ASSERT_LE(chain, step);
    covered += chain.seconds() / step.seconds();
  }
  std::printf("chain / step: %.3f\n", covered / static_cast<double>(kCases));
  EXPECT_GT(covered / static_cast<double>(kCases), 0.99);
}

}  // namespace
}  // namespace harmony::planner
