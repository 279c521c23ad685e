#pragma once

// Partitions of a chain of layers into consecutive groups. PURE.

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace harmony::planner {

// The cost of every range of `layers` layers: table[first][last].
using RangeCosts = std::vector<std::vector<double>>;
RangeCosts CostTable(int layers, const std::function<double(model::LayerRange)>& cost);

// The partition into `groups` groups whose most expensive group is cheapest; among equals the one
// whose costs are most even. REQUIRES: 1 <= groups <= layers; costs grow with the range.
std::vector<model::LayerRange> BalancedPartition(int groups, const RangeCosts& costs);

// A partition into shares.size() groups that take about their share of the costs each. REQUIRES:
// 1 <= groups <= layers.
std::vector<model::LayerRange> ProportionalPartition(const std::vector<double>& costs,
                                                     const std::vector<double>& shares);

// A partition into groups that take about the same part of the costs, but for the first `ramp` of
// them: each of these takes `taper` times as much as the one above it, for towards layer 0 a
// pipeline fills and drains. REQUIRES: 0 <= ramp < groups <= layers.
std::vector<model::LayerRange> TaperedPartition(const std::vector<double>& costs, int groups,
                                                int ramp, double taper);

// The job's `layer_groups`: layers per group, which must add up to the model's layers; the
// embedding and the head count as layers, or else belong to the first and to the last group.
absl::StatusOr<std::vector<model::LayerRange>> FixedPartition(const model::ModelSpec& model,
                                                              const std::vector<int>& layer_groups);

}  // namespace harmony::planner
