// The runner in simulated jobs.

#include "absl/strings/match.h"
#include "coordinator/runner/job_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulator/action_text.h"
#include "tests/sim/simulator/simulation.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::runner {
namespace {

using sim::DebugString;

TEST(RecordingTest, ReplaysToTheSameActions) {
  const model::ModelSpec model = dispatch::SmallModel(2);
  const plan::Plan plan = dispatch::SmallPlan(model, 2);
  const dispatch::UnitCosts costs;
  sim::SimOptions options;
  options.seed = 7;
  options.end_step = 4;
  options.save_steps = 2;
  options.jitter = true;
  options.kills = 3;
  options.fault_events = 400;
  options.keep_recording = true;
  const sim::SimResult result = sim::Simulate(model, plan, costs, options);
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.recording.size(), result.actions.size());

  RunnerOptions runner_options;
  runner_options.dispatch = {0, 4, 2, options.window};
  runner_options.max_generations_without_progress = 1000;
  // The simulator's coordinators continue the count of generations.
  const std::string first = result.actions.empty() ? "" : result.actions.front();
  for (const std::string& actions : result.actions) {
    const size_t at = actions.find("raise ");
    if (at == std::string::npos) continue;
    runner_options.first_generation = static_cast<uint32_t>(std::stoul(actions.substr(at + 6)));
    break;
  }
  JobRunner runner(model, plan, costs, runner_options);
  for (size_t i = 0; i < result.recording.size(); ++i) {
    const auto& [now, event] = result.recording[i];
    EXPECT_EQ(DebugString(runner.OnEvent(event, now)), result.actions[i]) << "event " << i;
  }
}

// A full disk at checkpoints on the way: training goes on without them, and saves what comes next.
TEST(SimulationTest, AJobGoesOnWithoutACheckpointAndWaitsForTheRest) {
  const model::ModelSpec model = dispatch::SmallModel(2);
  const plan::Plan plan = dispatch::SmallPlan(model, 2);
  const dispatch::UnitCosts costs;
  int without = 0, waits = 0, written = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    sim::SimOptions options;
    options.seed = seed;
    options.end_step = 6;
    options.save_steps = 1;
    options.jitter = options.keep_recording = true;
    options.refusals = 2;
    options.fault_events = 600;
    const sim::SimResult result = sim::Simulate(model, plan, costs, options);
    ASSERT_TRUE(result.status.ok()) << "seed " << seed << ": " << result.status;
    for (const std::string& actions : result.actions) {
      without += absl::StrContains(actions, "training goes on without this checkpoint");
      waits += absl::StrContains(actions, "the job waits and keeps what it has trained");
      written += absl::StrContains(actions, " is written");
    }
  }
  EXPECT_GT(without, 5);
  EXPECT_GT(waits, 5);
  EXPECT_GT(written, 5);
}

// Same arguments, same run.
TEST(SimulationTest, IsDeterministic) {
  const model::ModelSpec model = dispatch::SmallModel(3, true);
  const plan::Plan plan = dispatch::SmallPlan(model, 3);
  const dispatch::UnitCosts costs;
  sim::SimOptions options;
  options.seed = 11;
  options.end_step = 3;
  options.jitter = true;
  options.kills = 2;
  options.keep_recording = true;
  const sim::SimResult a = sim::Simulate(model, plan, costs, options);
  const sim::SimResult b = sim::Simulate(model, plan, costs, options);
  EXPECT_TRUE(a.status.ok()) << a.status;
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.finished, b.finished);
  EXPECT_EQ(a.actions, b.actions);
}

}  // namespace
}  // namespace harmony::runner
