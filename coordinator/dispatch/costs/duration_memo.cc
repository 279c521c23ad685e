#include "coordinator/dispatch/costs/duration_memo.h"

#include "coordinator/dispatch/memory/binding_places.h"

namespace harmony::dispatch {

ReplicaEdge EdgeOf(const GroupExecution& execution, int position, int replica_microbatches) {
  const int m = FirstMicrobatch(execution, position);
  const bool first = m % replica_microbatches == 0;
  const bool last = (m + execution.task_microbatches) % replica_microbatches == 0;
  return static_cast<ReplicaEdge>((first ? 1 : 0) + (last ? 2 : 0));
}

}  // namespace harmony::dispatch
