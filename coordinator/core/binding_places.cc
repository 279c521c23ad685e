#include "coordinator/core/binding_places.h"

#include <algorithm>

namespace harmony {

int OutputNumber(const Visit& visit, int boundary) {
  const auto at = std::find(visit.outputs.begin(), visit.outputs.end(), boundary);
  return static_cast<int>(at - visit.outputs.begin());
}

int BoundaryBank(const Plan& plan, int backward_group) {
  const int groups = static_cast<int>(plan.backward_groups.size());
  return (groups - 1 - backward_group) % std::min(plan.boundary_banks, groups - 1);
}

}  // namespace harmony
