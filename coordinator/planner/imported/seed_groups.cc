#include "coordinator/planner/imported/seed_groups.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "coordinator/planner/device_need.h"
#include "coordinator/planner/grouping.h"

namespace harmony {
namespace {

// Of a backward group with double buffers.
Bytes BytesOf(const ImportedModel& imported, int64_t samples, LayerRange range) {
  const ModelSpec& model = imported.model;
  Bytes bytes = BackwardWorkspaceBytes(model, range, samples, imported.job.sequence_length);
  for (int layer = range.first; layer <= range.last; ++layer) {
    bytes += model.blocks[layer].size() * 2;
  }
  if (range.first > 0) bytes += model.measured->Boundary(range.first, samples) * 4;
  if (range.last + 1 < model.num_layers()) {
    bytes += model.measured->Boundary(range.last + 1, samples) * 2;
  }
  return bytes;
}

// Groups of up to `full` seconds, but for the ramp.
std::vector<LayerGroup> UpTo(double full, const std::vector<double>& times, int end, int ramp,
                             double taper) {
  std::vector<LayerGroup> groups;
  for (int layer = 0; layer < end;) {
    const int small = std::max(ramp - static_cast<int>(groups.size()), 0);
    const double limit = full * std::pow(taper, small);
    double sum = times[static_cast<size_t>(layer)];
    const int first = layer++;
    while (layer < end && sum + times[static_cast<size_t>(layer)] <= limit) {
      sum += times[static_cast<size_t>(layer++)];
    }
    groups.push_back({{first, layer - 1}, 0});
  }
  return groups;
}

}  // namespace

std::vector<LayerGroup> RampedGroups(const std::vector<double>& times, int end, int count, int ramp,
                                     double taper) {
  double low = 0, high = 0;
  for (int layer = 0; layer < end; ++layer) high += times[static_cast<size_t>(layer)];
  // One group, if that is what is asked for.
  high = high * 1.001 / std::pow(taper, count == 1 ? ramp : 0);
  std::vector<LayerGroup> best = UpTo(high, times, end, ramp, taper);
  constexpr int kBisections = 16;
  for (int round = 0; round < kBisections; ++round) {
    const double middle = (low + high) / 2;
    std::vector<LayerGroup> groups = UpTo(middle, times, end, ramp, taper);
    if (static_cast<int>(groups.size()) <= count) {
      high = middle;
      best = std::move(groups);
    } else {
      low = middle;
    }
  }
  return best;
}

std::vector<std::vector<LayerGroup>> BalancedGroups(const std::vector<double>& times,
                                                    const std::vector<int>& counts) {
  std::vector<std::vector<LayerGroup>> all;
  for (int groups : counts) {
    std::vector<LayerGroup>& balanced = all.emplace_back();
    for (const LayerRange& layers :
         ProportionalPartition(times, std::vector<double>(static_cast<size_t>(groups), 1))) {
      balanced.push_back({layers, 0});
    }
  }
  return all;
}

std::vector<int> GroupCounts(int layers, int devices) {
  std::vector<int> counts;
  const auto add = [&](int count) { counts.push_back(std::clamp(count, 1, layers)); };
  for (int rounds : {1, 2, 3, 4, 6, 8, 12, 24}) {
    for (int more : {-1, 0, 1}) add(rounds * devices + more);
  }
  for (int count = 1; count <= 2 * devices; ++count) add(count);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::vector<LayerGroup> FilledGroups(const ImportedModel& imported, int64_t samples, double share) {
  const auto memory = static_cast<double>(imported.machine.devices[0].memory.count()) * share;
  const auto fits = [&](LayerRange range) {
    return static_cast<double>(BytesOf(imported, samples, range).count()) <= memory;
  };
  std::vector<LayerGroup> result;
  for (int last = imported.model.num_layers() - 1; last >= 0;
       last = result.back().layers.first - 1) {
    int first = last;
    while (first > 0 && fits({first - 1, last})) --first;
    result.push_back({{first, last}, 0});
  }
  std::reverse(result.begin(), result.end());
  return result;
}

std::vector<LayerGroup> EqualGroups(int layers, int size, int tail) {
  std::vector<LayerGroup> result = {{{layers - tail, layers - 1}, 0}};
  for (int last = layers - tail - 1; last >= 0; last -= size) {
    result.push_back({{std::max(last - size + 1, 0), last}, 0});
  }
  std::reverse(result.begin(), result.end());
  return result;
}

void SpreadByNeed(const ImportedModel& imported, const std::vector<double>& times, Plan* plan) {
  std::vector<GroupNeed> needs = NeedOfGroups(imported.model, *plan);
  std::stable_sort(needs.begin(), needs.end(), [](const GroupNeed& a, const GroupNeed& b) {
    return a.workspace > b.workspace;
  });
  struct Device {
    Bytes workspace, resident;
    double busy = 0;
  };
  std::vector<Device> devices(plan->devices.size());
  const Bytes memory = imported.machine.devices[0].memory;
  for (const GroupNeed& need : needs) {
    std::tuple<Bytes, double> least;  // lacking, busy
    int best = -1;
    for (size_t d = 0; d < devices.size(); ++d) {
      const Bytes together = std::max(devices[d].workspace, need.workspace) +
                             std::max(devices[d].resident, need.resident());
      const std::tuple rank(std::max(together - memory, Bytes()), devices[d].busy);
      if (best >= 0 && rank >= least) continue;
      least = rank;
      best = static_cast<int>(d);
    }
    Device& device = devices[static_cast<size_t>(best)];
    device.workspace = std::max(device.workspace, need.workspace);
    device.resident = std::max(device.resident, need.resident());
    for (int layer = need.layers.first; layer <= need.layers.last && !times.empty(); ++layer) {
      device.busy += times[static_cast<size_t>(layer)];
    }
    const auto group = static_cast<size_t>(need.group);
    (need.kind == VisitKind::kForward ? plan->forward_groups : plan->backward_groups)[group]
        .device = best;
  }
}

}  // namespace harmony
