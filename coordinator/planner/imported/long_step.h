#pragma once

// Steps of very many microbatches, judged by two shorter ones. PURE.
//
// A step that is as much shorter in all it does (fewer microbatches, and what is done once a step,
// i.e. copies of weights and gradients and updates, in as much less time) takes as much less, but
// for filling and draining the pipeline, which takes the same. So two such steps tell what the
// whole takes. Steps that can be followed in little time are followed as they are.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "coordinator/planner/evaluation.h"

namespace harmony {

// Tasks of a step that is followed as it is.
inline constexpr int64_t kMostTasksOfAStep = 16'000;

// Forward and backward tasks of so many microbatches, a multiple of a forward task's.
int64_t TasksOf(const Plan& plan, int microbatches);

// Numbers of microbatches that stand for all of a plan's.
struct ShortSteps {
  int fewer = 0, more = 0;

  // Of what the shorter steps take, what the long one does. No less than the longer of them.
  int64_t Extend(int64_t of_fewer, int64_t of_more, int microbatches) const;
};

// None for a plan of at most `most_tasks` tasks in a step; else such that the two have about as
// many together.
std::optional<ShortSteps> ShortStepsFor(const Plan& plan, int64_t most_tasks);

// The costs of a step of `microbatches` of the plan's. `costs` must outlive it.
std::unique_ptr<CostModel> CostsOfShortStep(const ModelSpec& model, const Plan& plan,
                                            int microbatches, const CostModel& costs);

// EvaluatePlan and RehearsePlan, of a plan that has been completed. A long step takes no less than
// any lane or link is busy in it.
absl::StatusOr<Estimate> EvaluateStep(const ModelSpec& model, const Plan& plan,
                                      const CostModel& costs);
absl::StatusOr<RehearsedPlan> RehearseStep(const ModelSpec& model, const Plan& plan,
                                           const CostModel& costs);

}  // namespace harmony
