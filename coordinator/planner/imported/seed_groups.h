#pragma once

// Groups that a search on an imported profile begins with. PURE.

#include <vector>

#include "coordinator/planner/imported/imported_model.h"

namespace harmony {

// Groups by time: as many as each of these numbers, all of about the same time. `times`: of layers.
std::vector<std::vector<LayerGroup>> BalancedGroups(const std::vector<double>& times,
                                                    const std::vector<int>& counts);
// Numbers of groups worth a try: each up to a few for every device, then fewer of them.
std::vector<int> GroupCounts(int layers, int devices);

// `count` groups or somewhat fewer of the layers before `end`, by time: `ramp` groups that grow
// towards the rest, each so many times (`taper`, at most 1) as long as the one above it, where the
// pipeline fills and drains; the others about as long as each other. More than `count` where the
// ramp alone is.
std::vector<LayerGroup> RampedGroups(const std::vector<double>& times, int end, int count, int ramp,
                                     double taper);

// From the last layer down, as much in each group as takes a share of a device's memory in
// backward, double buffers included.
std::vector<LayerGroup> FilledGroups(const ImportedModel& imported, int64_t samples, double share);

// `size` layers each, with a remainder at the front; the last group has `tail`. REQUIRES: tail <=
// layers.
std::vector<LayerGroup> EqualGroups(int layers, int size, int tail);

// Puts the plan's groups, one by one, where they fit with those that are there already: those of
// most workspace first, each on the device with the least to do of those that have room (without
// times on the first of them); where none has, on the one that lacks least. For memory so small
// that groups of much workspace and groups of much weight must not share a device.
void SpreadByNeed(const ImportedModel& imported, const std::vector<double>& times, Plan* plan);

}  // namespace harmony
