#include "coordinator/dispatch/memory/binding_places.h"

#include <algorithm>

namespace harmony::dispatch {

int OutputNumber(const GroupExecution& execution, int boundary) {
  const auto at = std::find(execution.outputs.begin(), execution.outputs.end(), boundary);
  return static_cast<int>(at - execution.outputs.begin());
}

int BoundaryBank(const plan::Plan& plan, int backward_group) {
  const int groups = static_cast<int>(plan.backward_groups.size());
  return (groups - 1 - backward_group) % plan.banks();
}

}  // namespace harmony::dispatch
