#pragma once

// Where one layer group ends and the next begins: what moves change it by. Groups lie behind each
// other, each of at least one layer.

#include <cstddef>
#include <vector>

#include "common/plan/plan.h"

namespace harmony::planner {

using Groups = std::vector<plan::LayerGroup>;

// The group that begins with the layer; 0: none does, or the first.
size_t BeginningAt(const Groups& groups, int layer);
// Moves the boundaries below groups `first` to `last` together; false where that would take a whole
// group. REQUIRES: first >= 1.
bool ShiftBoundaries(size_t first, size_t last, int by, Groups* groups);
// The groups on both sides of the boundary become one, on the devices of the lower or of the upper
// one. Nothing where there is none.
void RemoveBoundary(int at, bool upper_devices, Groups* groups);
// A new boundary below that layer within a group; false where there is one, or no group. Both run
// where the group did.
bool Cut(int at, Groups* groups);

}  // namespace harmony::planner
