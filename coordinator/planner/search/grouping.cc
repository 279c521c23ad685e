#include "coordinator/planner/search/grouping.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::planner {

RangeCosts CostTable(int layers, const std::function<double(model::LayerRange)>& cost) {
  RangeCosts costs(layers, std::vector<double>(layers, 0));
  for (int first = 0; first < layers; ++first) {
    for (int last = first; last < layers; ++last) costs[first][last] = cost({first, last});
  }
  return costs;
}

std::vector<model::LayerRange> BalancedPartition(int groups, const RangeCosts& costs) {
  const int layers = static_cast<int>(costs.size());
  // best[k][n]: (largest cost, sum of squares) of the first n layers in k groups.
  using Score = std::pair<double, double>;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const size_t size = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<Score>> best(groups + 1,
                                       std::vector<Score>(size, {kInfinity, kInfinity}));
  std::vector<std::vector<int>> cut(groups + 1, std::vector<int>(size, 0));
  best[0][0] = {0, 0};
  for (int k = 1; k <= groups; ++k) {
    for (int n = k; n <= layers; ++n) {
      for (int first = k - 1; first < n; ++first) {
        const double here = costs[first][n - 1];
        const Score& before = best[k - 1][first];
        const Score score = {std::max(before.first, here), before.second + here * here};
        if (score < best[k][n]) {
          best[k][n] = score;
          cut[k][n] = first;
        }
      }
    }
  }
  std::vector<model::LayerRange> partition(groups);
  for (int k = groups, end = layers; k > 0; --k) {
    partition[k - 1] = {cut[k][end], end - 1};
    end = cut[k][end];
  }
  return partition;
}

std::vector<model::LayerRange> ProportionalPartition(const std::vector<double>& costs,
                                                     const std::vector<double>& shares) {
  const int layers = static_cast<int>(costs.size()), groups = static_cast<int>(shares.size());
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  const double share = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<model::LayerRange> partition;
  double cost = 0, wanted = 0;
  for (int g = 0, first = 0; g < groups; ++g) {
    wanted += shares[g] / share * all;
    int end = first + 1;
    cost += costs[first];
    // As near to the share as whole layers go; each group behind needs one.
    while (end < layers - (groups - 1 - g) &&
           (g + 1 == groups || cost + costs[end] / 2 <= wanted)) {
      cost += costs[end++];
    }
    partition.push_back({first, end - 1});
    first = end;
  }
  return partition;
}

std::vector<model::LayerRange> TaperedPartition(const std::vector<double>& costs, int groups,
                                                int ramp, double taper) {
  std::vector<double> shares(groups, 1);
  for (int g = ramp - 1; g >= 0; --g) shares[g] = shares[g + 1] * taper;
  return ProportionalPartition(costs, shares);
}

absl::StatusOr<std::vector<model::LayerRange>> FixedPartition(
    const model::ModelSpec& model, const std::vector<int>& layer_groups) {
  std::vector<int> counts = layer_groups;
  int64_t sum = 0;
  for (int count : counts) {
    if (count < 1) return absl::InvalidArgumentError("layer_groups: each group needs a layer");
    sum += count;
  }
  const int layers = model.num_layers();
  if (sum == layers - 2) {
    ++counts.front();
    ++counts.back();
  } else if (sum != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer_groups: the groups have ", sum, " layers; the model has ", layers - 2,
                     " blocks (", layers, " layers with the embedding and the head)"));
  }
  std::vector<model::LayerRange> partition;
  int first = 0;
  for (int count : counts) {
    partition.push_back({first, first + count - 1});
    first += count;
  }
  return partition;
}

}  // namespace harmony::planner
