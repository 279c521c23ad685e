#include "coordinator/planner/report/bottleneck.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"
#include "tests/unit/coordinator/planner/timing/random_costs.h"

namespace harmony::planner {
namespace {

using ::testing::MatchesRegex;
using ::testing::StartsWith;

// Tasks take a thousand times as long as usual, or copies of weights do.
class OneIsSlow : public dispatch::UnitCosts {
 public:
  explicit OneIsSlow(bool tasks) : tasks_(tasks) {}
  Nanos Duration(const command::Command& command) const override {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    const bool slow = tasks_ ? std::holds_alternative<command::ComputeTask>(command.body)
                             : copy != nullptr && copy->traffic == command::TrafficClass::kWeights;
    return UnitCosts::Duration(command) * (slow ? 1000 : 1);
  }

 private:
  const bool tasks_;
};

TEST(BottleneckTest, NamesWhatBindsAndDrawsTheStep) {
  const model::ModelSpec model = dispatch::SmallModel();  // embedding, block, head
  const plan::Plan plan = dispatch::SmallPlan(model, 1);
  for (const bool tasks : {true, false}) {
    const OneIsSlow costs(tasks);
    const absl::StatusOr<Estimate> estimate =
        EvaluatePlan(model, plan, costs, {.steps = 3, .keep_timeline = true});
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    EXPECT_THAT(BottleneckOf(*estimate, 1).verdict,
                StartsWith(tasks ? "device 0: computing binds: busy for "
                                 : "device 0: link in together binds: busy for "));
    const std::vector<TimelineRow> rows = DrawTimeline(*estimate, 1, 40);
    ASSERT_GE(rows.size(), 2U);
    EXPECT_EQ(rows[0].lane, "device 0: computing");
    EXPECT_EQ(rows[1].lane, "device 0: loading weights");
    EXPECT_EQ(rows[0].cells.size(), 40U);
    // Forwards of two groups, the last group's tasks, backwards of two groups.
    EXPECT_THAT(rows[tasks ? 0 : 1].cells, MatchesRegex(tasks ? "F+X+B+" : "w+")) << rows[1].cells;
  }
}

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
