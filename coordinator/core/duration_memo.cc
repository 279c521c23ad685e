#include "coordinator/core/duration_memo.h"

#include "coordinator/core/binding_places.h"

namespace harmony {

ReplicaEdge EdgeOf(const Visit& visit, int position, int replica_microbatches) {
  const int m = FirstMicrobatch(visit, position);
  const bool first = m % replica_microbatches == 0;
  const bool last = (m + visit.span) % replica_microbatches == 0;
  return static_cast<ReplicaEdge>((first ? 1 : 0) + (last ? 2 : 0));
}

}  // namespace harmony
