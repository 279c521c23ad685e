#include "coordinator/planner/imported/long_step.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/base/status.h"
#include "common/plan/arena_layout.h"

namespace harmony {
namespace {

// A device is always at the same when the pipeline is full.
constexpr int kFewestPerDevice = 3;
constexpr int kRehearsedSteps = 2;

class ShortStepCosts : public CostModel {
 public:
  ShortStepCosts(const ModelSpec& model, const Plan& plan, int microbatches, const CostModel& costs)
      : costs_(costs),
        lanes_(static_cast<int>(plan.devices.size())),
        part_(static_cast<double>(microbatches) / plan.num_microbatches) {
    for (const ParamBlock& block : model.blocks) blocks_.insert(block.size().count());
    for (int boundary = 0; boundary < model.num_layers(); ++boundary) {
      for (int span : {1, plan.forward_span}) {
        blocks_.erase(
            BoundaryBytes(model, boundary, plan.microbatch_size * span, plan.sequence_length)
                .count());
      }
    }
  }

  Nanos Duration(const Command& command) const override {
    const Nanos whole = costs_.Duration(command);
    if (!OncePerStep(command)) return whole;
    return Nanos::FromSeconds(whole.seconds() * part_);
  }

 private:
  // By lane and size alone, as a rehearsal needs it: a copy to the host of a block's size is of its
  // gradient.
  bool OncePerStep(const Command& command) const {
    const LaneKind lane = lanes_.LaneAt(static_cast<int>(command.header.lane)).kind;
    if (lane == LaneKind::kH2DBulk || lane == LaneKind::kHostCompute) return true;
    const auto* copy = std::get_if<Transfer>(&command.body);
    return lane == LaneKind::kD2H && copy != nullptr && blocks_.contains(copy->size.count());
  }

  const CostModel& costs_;
  const LaneTable lanes_;
  const double part_;
  absl::flat_hash_set<int64_t> blocks_;  // sizes
};

Plan Shortened(const ModelSpec& model, const Plan& plan, int microbatches) {
  Plan shorter = WithMicrobatches(model, plan, microbatches);
  shorter.arena_dynamic = ArenaLayout(model, shorter).dynamic_bytes();
  return shorter;
}

// The longer estimate, made that of a whole step.
void ExtendFrom(const Estimate& fewer, const ShortSteps& steps, int microbatches, Estimate* more) {
  const auto extend = [&](int64_t from, int64_t* to) {
    *to = steps.Extend(from, *to, microbatches);
  };
  std::vector<Nanos> busy;
  for (size_t lane = 0; lane < more->lanes.size(); ++lane) {
    const LaneUse& from = fewer.lanes[lane];
    LaneUse& to = more->lanes[lane];
    to.busy = Nanos(steps.Extend(from.busy.count(), to.busy.count(), microbatches));
    extend(from.bytes, &to.bytes);
    extend(from.commands, &to.commands);
    busy.push_back(to.busy);
  }
  for (size_t c = 0; c < more->bytes.size(); ++c) extend(fewer.bytes[c], &more->bytes[c]);
  extend(fewer.peer_bytes, &more->peer_bytes);
  more->commands += fewer.commands;
  more->step = std::max(Nanos(steps.Extend(fewer.step.count(), more->step.count(), microbatches)),
                        BusiestLink(more->links, busy));
}

}  // namespace

int64_t TasksOf(const Plan& plan, int microbatches) {
  return static_cast<int64_t>(plan.forward_groups.size()) * (microbatches / plan.forward_span) +
         static_cast<int64_t>(plan.backward_groups.size()) * microbatches;
}

int64_t ShortSteps::Extend(int64_t of_fewer, int64_t of_more, int microbatches) const {
  const int64_t grown = std::max<int64_t>(of_more - of_fewer, 0), by = more - fewer;
  const int64_t further = microbatches - more;
  return of_more + grown / by * further + grown % by * further / by;
}

std::optional<ShortSteps> ShortStepsFor(const Plan& plan, int64_t most_tasks) {
  if (TasksOf(plan, plan.num_microbatches) <= most_tasks) return std::nullopt;
  const int span = plan.forward_span;
  const int64_t each = std::max<int64_t>(TasksOf(plan, span), 1);  // of so many microbatches
  const int64_t full = static_cast<int64_t>(plan.devices.size()) * kFewestPerDevice;
  const int64_t fewer = std::max(most_tasks / each / 3, (full + span - 1) / span);
  if (3 * fewer * span >= plan.num_microbatches) return std::nullopt;
  return ShortSteps{static_cast<int>(fewer) * span, static_cast<int>(fewer) * span * 2};
}

std::unique_ptr<CostModel> CostsOfShortStep(const ModelSpec& model, const Plan& plan,
                                            int microbatches, const CostModel& costs) {
  return std::make_unique<ShortStepCosts>(model, plan, microbatches, costs);
}

absl::StatusOr<Estimate> EvaluateStep(const ModelSpec& model, const Plan& plan,
                                      const CostModel& costs) {
  const std::optional<ShortSteps> steps = ShortStepsFor(plan, kMostTasksOfAStep);
  if (!steps) return EvaluatePlan(model, plan, costs);
  const auto evaluate = [&](int microbatches) {
    return EvaluatePlan(model, Shortened(model, plan, microbatches),
                        ShortStepCosts(model, plan, microbatches, costs));
  };
  HARMONY_ASSIGN_OR_RETURN(const Estimate fewer, evaluate(steps->fewer));
  HARMONY_ASSIGN_OR_RETURN(Estimate more, evaluate(steps->more));
  ExtendFrom(fewer, *steps, plan.num_microbatches, &more);
  return more;
}

absl::StatusOr<RehearsedPlan> RehearseStep(const ModelSpec& model, const Plan& plan,
                                           const CostModel& costs) {
  const std::optional<ShortSteps> steps = ShortStepsFor(plan, kMostTasksOfAStep);
  if (!steps) return RehearsePlan(model, plan, costs, kRehearsedSteps);
  const auto rehearse = [&](int microbatches) {
    return RehearsePlan(model, Shortened(model, plan, microbatches),
                        ShortStepCosts(model, plan, microbatches, costs), kRehearsedSteps);
  };
  HARMONY_ASSIGN_OR_RETURN(const RehearsedPlan fewer, rehearse(steps->fewer));
  HARMONY_ASSIGN_OR_RETURN(RehearsedPlan more, rehearse(steps->more));
  more.step = Nanos(steps->Extend(fewer.step.count(), more.step.count(), plan.num_microbatches));
  more.commands += fewer.commands;
  return more;
}

}  // namespace harmony
