#include "coordinator/planner/imported/quick_time.h"

#include "common/base/status.h"
#include "coordinator/core/kept_layout.h"

namespace harmony {
namespace {

constexpr int kFew = 4;

absl::StatusOr<Nanos> TimeWith(const ModelSpec& model, Plan plan, int microbatches,
                               const CostModel& costs, int64_t* commands) {
  if (microbatches < plan.num_microbatches) {
    // The places of stashes that are not made stay taken.
    const KeptLayout all(model, plan);
    plan.num_microbatches = microbatches;
    const KeptLayout some(model, plan);
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      const int device = static_cast<int>(d);
      plan.devices[d].resident =
          plan.devices[d].resident - (all.bytes(device) - some.bytes(device));
    }
  }
  HARMONY_ASSIGN_OR_RETURN(const Estimate estimate, EvaluatePlan(model, plan, costs));
  *commands += estimate.commands;
  return estimate.step;
}

}  // namespace

absl::StatusOr<Nanos> QuickTime(const ModelSpec& model, const Plan& plan, const CostModel& costs,
                                int64_t* commands) {
  const int few = kFew * plan.forward_span;
  if (plan.num_microbatches <= 3 * few) {
    return TimeWith(model, plan, plan.num_microbatches, costs, commands);
  }
  HARMONY_ASSIGN_OR_RETURN(const Nanos some, TimeWith(model, plan, few, costs, commands));
  HARMONY_ASSIGN_OR_RETURN(const Nanos more, TimeWith(model, plan, 2 * few, costs, commands));
  const double each = (more - some).seconds() / few;
  return more + Nanos::FromSeconds(each * (plan.num_microbatches - 2 * few));
}

}  // namespace harmony
