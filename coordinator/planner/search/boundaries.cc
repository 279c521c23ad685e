#include "coordinator/planner/search/boundaries.h"

namespace harmony::planner {

size_t BeginningAt(const Groups& groups, int layer) {
  for (size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].layers.first == layer) return i;
  }
  return 0;
}

bool ShiftBoundaries(size_t first, size_t last, int by, Groups* groups) {
  model::LayerRange &below = (*groups)[first - 1].layers, &above = (*groups)[last].layers;
  if (below.count() + by < 1 || above.count() - by < 1) return false;
  below.last += by;
  for (size_t i = first; i < last; ++i) {
    (*groups)[i].layers.first += by;
    (*groups)[i].layers.last += by;
  }
  above.first += by;
  return true;
}

void RemoveBoundary(int at, bool upper_devices, Groups* groups) {
  const size_t i = BeginningAt(*groups, at);
  if (i == 0) return;
  plan::LayerGroup &below = (*groups)[i - 1], &above = (*groups)[i];
  below.layers.last = above.layers.last;
  if (upper_devices) below.devices = above.devices;
  groups->erase(groups->begin() + static_cast<ptrdiff_t>(i));
}

bool Cut(int at, Groups* groups) {
  for (size_t i = 0; i < groups->size(); ++i) {
    plan::LayerGroup& group = (*groups)[i];
    if (!group.layers.contains(at) || group.layers.first == at) continue;
    plan::LayerGroup above = group;
    above.layers.first = at;
    group.layers.last = at - 1;
    groups->insert(groups->begin() + static_cast<ptrdiff_t>(i) + 1, above);
    return true;
  }
  return false;
}

}  // namespace harmony::planner
