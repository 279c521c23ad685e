#include "coordinator/dispatch/costs/duration_memo.h"

#include "coordinator/dispatch/memory/binding_places.h"

namespace harmony::dispatch {

SumEdge EdgeOf(const plan::Plan& plan, const GroupExecution& execution, int position) {
  const int m = FirstMicrobatch(execution, position), end = m + execution.task_microbatches;
  const bool first = m % plan.replica_microbatches() == 0;
  const bool last = end % plan.replica_microbatches() == 0;
  const bool stored = execution.sum.microbatches > 0 && execution.sum.given_to < 0 &&
                      end % execution.sum.microbatches == 0;
  return static_cast<SumEdge>((first ? 1 : 0) + (last ? 2 : 0) + (stored ? 4 : 0));
}

}  // namespace harmony::dispatch
