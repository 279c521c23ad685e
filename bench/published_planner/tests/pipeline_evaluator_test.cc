#include "bench/published_planner/cost_model/pipeline_evaluator.h"

#include <gtest/gtest.h>

#include <limits>

#include "bench/published_planner/cost_model/event_simulator.h"
#include "bench/published_planner/tests/random_profile.h"

namespace harmony::published {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

TEST(PipelineEvaluatorTest, EqualsTheEventSimulatorOnRandomInstances) {
  for (uint64_t stream = 0; stream < 4000; ++stream) {
    SCOPED_TRACE(Replay(stream));
    CounterRandom random(TestSeed(), stream);
    const int layers = IntBetween(random, 1, 12);
    const LayerProfile profile = RandomProfile(random, layers, 12);
    Machine machine;
    machine.gpus = IntBetween(random, 2, 6);
    const int64_t sizes[] = {1, 2, 3, 4, 6, 12};
    const int64_t u_fwd = sizes[random.Below(6)], u_bwd = sizes[random.Below(6)];
    const int64_t minibatch = 12 * IntBetween(random, 1, 3);
    const auto costs = MakePackCosts(profile, machine, minibatch, u_fwd, u_bwd);
    ASSERT_TRUE(costs.ok());
    PipelineEvaluator evaluator(*costs, machine.gpus);
    for (int repeat = 0; repeat < 3; ++repeat) {  // the evaluator keeps nothing between calls
      const Cuts cuts = RandomCuts(random, layers);
      const auto expected = Simulate(profile, machine, Mode::kPipeline, minibatch,
                                     ToSchedule(cuts, *costs), Prefetch::kOff);
      ASSERT_TRUE(expected.ok()) << expected.status();
      const double time = expected->time_s;
      ASSERT_NEAR(evaluator.Evaluate(cuts, kNever), time, 1e-9 * time);
      // A cutoff is reached only by schedules that reach it, and then it is never undercut.
      EXPECT_NEAR(evaluator.Evaluate(cuts, time * 1.000001), time, 1e-9 * time);
      const double cutoff = time * Between(random, 0.2, 0.999999);
      EXPECT_GE(evaluator.Evaluate(cuts, cutoff), cutoff);
    }
  }
}

}  // namespace
}  // namespace harmony::published
