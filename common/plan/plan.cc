#include "common/plan/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/command/command.h"
#include "common/command/lane_kinds.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"

namespace harmony::plan {
namespace {

std::string GroupsText(const std::vector<LayerGroup>& groups) {
  std::string text;
  for (const LayerGroup& group : groups) {
    absl::StrAppend(&text, text.empty() ? "" : " ", group.layers.first, "-", group.layers.last, "@",
                    group.devices.ToString(), group.keep_weights ? " (weights kept)" : "",
                    group.keep_stash ? " (stash kept)" : "",
                    group.keep_activations ? " (activations kept)" : "");
  }
  return text.empty() ? "none" : text;
}

// That of `groups` with the same layers and devices as a group of the other phase; -1: there is
// none.
int TwinOf(const std::vector<LayerGroup>& groups, const LayerGroup& other) {
  const auto at = std::partition_point(groups.begin(), groups.end(), [&](const LayerGroup& group) {
    return group.layers.first < other.layers.first;
  });
  const bool twin =
      at != groups.end() && at->layers == other.layers && at->devices == other.devices;
  return twin ? static_cast<int>(at - groups.begin()) : -1;
}

}  // namespace

Shard ShardOf(const Plan& plan, const LayerGroup& group, int number) {
  const DeviceSet& devices = group.devices;
  const int each = plan.entry_microbatches(group);
  int begin = 0;
  for (int left = number; left > 0; ++begin) left -= int{devices[begin + 1] != devices[begin]};
  int end = begin + 1;
  while (end < devices.size() && devices[end] == devices[begin]) ++end;
  return {devices[begin], begin * each, (end - begin) * each};
}

int ShardWith(const Plan& plan, const LayerGroup& group, int microbatch) {
  return group.devices.ShardOfEntry(microbatch / plan.entry_microbatches(group));
}

int DeviceOf(const Plan& plan, const LayerGroup& group, int microbatch) {
  return group.devices[microbatch / plan.entry_microbatches(group)];
}

namespace {

enum class Overlap { kNone, kSome, kAll };

// Of the shard's microbatches, those that the group runs on the shard's device.
Overlap OverlapWith(const Plan& plan, const LayerGroup& group, const Shard& shard) {
  const int each = plan.entry_microbatches(group);
  const int first = shard.first / each, last = (shard.end() - 1) / each;
  int same = 0;
  for (int entry = first; entry <= last; ++entry) same += group.devices[entry] == shard.device;
  return same == 0 ? Overlap::kNone : same == last + 1 - first ? Overlap::kAll : Overlap::kSome;
}

}  // namespace

bool RunsOnDeviceOf(const Plan& plan, const LayerGroup& group, const Shard& shard) {
  return OverlapWith(plan, group, shard) == Overlap::kAll;
}

int WeightPeer(const Plan& plan, const LayerGroup& group, int shard) {
  if (!plan.pass_weights) return -1;
  const auto root = [&](int of) {
    return plan.devices[static_cast<size_t>(ShardOf(plan, group, of).device)].root;
  };
  int peer = shard - 1;
  while (peer >= 0 && (root(peer) == 0 || root(peer) != root(shard))) --peer;
  return peer;
}

bool CanAddUp(const Plan& plan, const LayerGroup& group, int parts) {
  const int part = plan.num_microbatches / parts;
  for (int number = 0; number < group.devices.num_shards(); ++number) {
    const Shard shard = ShardOf(plan, group, number);
    if (shard.first % part == 0 && shard.count % part == 0) continue;
    const bool aligned = part % shard.count == 0 && shard.first % shard.count == 0 &&
                         model::IsPowerOfTwo(shard.count / plan.replica_microbatches());
    if (!aligned) return false;
  }
  return true;
}

namespace {

// Devices of each part of several shards share a link to the host, or none of them does.
bool PartsAreOfRoots(const Plan& plan, const LayerGroup& group, int parts) {
  const int part = plan.num_microbatches / parts;
  for (int number = 0; number < group.devices.num_shards(); ++number) {
    const Shard shard = ShardOf(plan, group, number);
    if (shard.count >= part) continue;
    const int first = shard.first / part * part;
    const int root = plan.devices[static_cast<size_t>(shard.device)].root;
    const int device = DeviceOf(plan, group, first);
    if (root != plan.devices[static_cast<size_t>(device)].root) return false;
  }
  return true;
}

}  // namespace

ShardSum SumOf(const Plan& plan, const LayerGroup& backward_group, const Shard& shard) {
  const int part = plan.part_microbatches(backward_group);
  ShardSum sum{std::min(part, shard.count), 0, -1};
  if (sum.microbatches == part) return sum;
  // In the tree over the part, the shard's sum is a right child that often in a row.
  sum.taken = model::AdditionsAfter(shard.first % part / shard.count);
  const int size = shard.count << sum.taken;
  if (size < part) sum.given_to = ShardWith(plan, backward_group, shard.end() + size - 1);
  return sum;
}

int GiverOf(const Plan& plan, const LayerGroup& backward_group, const Shard& taker, int number) {
  // Before it lie the sums number 0 to `number` - 1, of 1, 2, 4, ... times its microbatches.
  return ShardWith(plan, backward_group, taker.first - taker.count * ((1 << number) - 1) - 1);
}

int FewestParts(const Plan& plan, const LayerGroup& backward_group) {
  int parts = backward_group.devices.size();
  while (parts > 1 && CanAddUp(plan, backward_group, parts / 2) &&
         PartsAreOfRoots(plan, backward_group, parts / 2)) {
    parts /= 2;
  }
  return parts;
}

const char* ModeOf(const Plan& plan) {
  const DeviceSet& all = plan.backward_groups.back().devices;
  bool one = true, same = true;
  for (const std::vector<LayerGroup>* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const LayerGroup& group : *groups) {
      one = one && group.devices.num_shards() == 1;
      same = same && group.devices == all;
    }
  }
  return one ? "harmony-pp" : same ? "harmony-dp" : "mixed";
}

std::string DebugString(const Plan& plan) {
  std::string text = absl::StrCat(
      plan.replicas > 1 ? absl::StrCat(plan.replicas, " replicas, ") : "", plan.num_microbatches,
      " microbatches of ", plan.microbatch_size, " x ", plan.sequence_length,
      plan.microbatches_per_forward_task > 1
          ? absl::StrCat(", ", plan.microbatches_per_forward_task, " at once in forward")
          : "",
      "; forward ", GroupsText(plan.forward_groups), "; backward ",
      GroupsText(plan.backward_groups), "; ", ToString(plan.update), plan.clip ? ", clipped" : "",
      plan.gradient_dtype == DType::kBF16 ? ", gradients bf16" : "", "; slots ", plan.stream_slots,
      "; arena ", FormatBytes(plan.arena_dynamic));
  for (size_t i = 0; i < plan.devices.size(); ++i) {
    absl::StrAppend(&text, "; device ", i, " ", FormatBytes(plan.devices[i].resident), " of ",
                    FormatBytes(plan.devices[i].memory));
  }
  return text;
}

const LayerGroup& BackwardGroupOf(const Plan& plan, int layer) {
  const auto behind =
      std::partition_point(plan.backward_groups.begin(), plan.backward_groups.end(),
                           [&](const LayerGroup& group) { return group.layers.first <= layer; });
  return *(behind - 1);
}

LayerGroup& BackwardGroupOf(Plan& plan, int layer) {
  return const_cast<LayerGroup&>(BackwardGroupOf(std::as_const(plan), layer));
}

void TieParts(const model::ModelSpec& model, Plan& plan) {
  // A group may have a part in several tied blocks.
  for (bool changed = true; changed;) {
    changed = false;
    for (const model::ParamBlock& block : model.blocks) {
      if (!block.tied()) continue;
      int most = 0;
      const auto group_of = [&](int reference) -> LayerGroup& {
        return BackwardGroupOf(plan, model.references[reference].layer);
      };
      for (int reference : block.references) {
        most = std::max(most, group_of(reference).gradient_parts);
      }
      for (int reference : block.references) {
        changed |= std::exchange(group_of(reference).gradient_parts, most) != most;
      }
    }
  }
}

bool LargerForwardTasksAllowed(const model::ModelSpec& model, const Plan& plan) {
  return model::BoundariesSplit(model, plan.microbatch_size);
}

int KeeperOf(const Plan& plan, const LayerGroup& forward_group) {
  const int group = TwinOf(plan.backward_groups, forward_group);
  return group >= 0 && plan.backward_groups[group].keep_weights ? group : -1;
}

int ActivationKeeperOf(const Plan& plan, const LayerGroup& forward_group) {
  const int group = TwinOf(plan.backward_groups, forward_group);
  return group >= 0 && plan.backward_groups[group].keep_activations ? group : -1;
}

bool CanKeepWeights(const Plan& plan, const LayerGroup& backward_group) {
  return TwinOf(plan.forward_groups, backward_group) >= 0;
}

bool CanKeepActivations(const Plan& plan, const LayerGroup& backward_group) {
  return plan.microbatches_per_forward_task == 1 && StashBoundary(backward_group) > 0 &&
         CanKeepWeights(plan, backward_group) && CanKeepStash(plan, backward_group);
}

bool CanKeepStash(const Plan& plan, const LayerGroup& backward_group) {
  const bool fused = backward_group.layers == plan.backward_groups.back().layers;
  const int boundary = fused ? backward_group.layers.first : StashBoundary(backward_group);
  const auto maker =
      std::find_if(plan.forward_groups.begin(), plan.forward_groups.end(),
                   [&](const LayerGroup& group) { return group.layers.contains(boundary - 1); });
  if (maker == plan.forward_groups.end()) return true;  // it has no stash
  for (int shard = 0; shard < maker->devices.num_shards(); ++shard) {
    const Overlap kept = OverlapWith(plan, backward_group, ShardOf(plan, *maker, shard));
    if (kept == Overlap::kSome) return false;
  }
  return true;
}

int StashBoundary(const LayerGroup& group) {
  if (group.layers.first > 0) return group.layers.first;
  return group.layers.last > 0 ? 1 : -1;
}

Stashes StashesOf(const Plan& plan) { return StashesOf(plan, 0, std::numeric_limits<int>::max()); }

Stashes StashesOf(const Plan& plan, int first, int last) {
  Stashes result;
  const std::vector<LayerGroup>& groups = plan.backward_groups;
  // The boundary of a group is its first layer, or in the first group the layer behind.
  const auto begin = std::partition_point(
      groups.begin(), groups.end(),
      [first](const LayerGroup& group) { return group.layers.first + 1 < first; });
  for (auto group = begin; group != groups.end(); ++group) {
    const bool fused = group + 1 == groups.end();
    const int boundary = fused ? group->layers.first : StashBoundary(*group);
    if (boundary > last) break;
    if (boundary <= 0 || boundary < first) continue;
    result.push_back({boundary, static_cast<int>(group - groups.begin()), group->keep_stash});
  }
  return result;
}

Indices ReferencesOf(const model::ModelSpec& model, model::LayerRange layers) {
  Indices references;
  for (int layer = layers.first; layer <= layers.last; ++layer) {
    const std::vector<int>& more = model.layers[layer].references;
    references.insert(references.end(), more.begin(), more.end());
  }
  return references;
}

Indices BlocksOf(const model::ModelSpec& model, model::LayerRange layers, bool backward) {
  Indices blocks;
  for (int layer = layers.first; layer <= layers.last; ++layer) {
    for (const int reference : model.layers[layer].references) {
      if (backward && !model.references[reference].needed_in_backward) continue;
      const int block = model.references[reference].block;
      const bool known = model.blocks[block].tied() &&
                         std::find(blocks.begin(), blocks.end(), block) != blocks.end();
      if (!known) blocks.push_back(block);
    }
  }
  return blocks;
}

MinimalSwap ComputeMinimalSwap(const model::ModelSpec& model, const Plan& plan) {
  MinimalSwap swap;
  const int64_t samples = plan.global_batch();
  // Microbatch by microbatch: between the tensors of a boundary there are gaps.
  const auto boundary_bytes = [&](int boundary) {
    return model::BoundaryBytes(model, boundary, plan.microbatch_size) * plan.num_microbatches;
  };
  auto load = [&](const LayerGroup& group, bool backward) {
    int loads = 0;  // of a block: of shards that do not have it passed on
    for (int shard = 0; shard < group.devices.num_shards(); ++shard) {
      loads += WeightPeer(plan, group, shard) < 0;
    }
    for (int block : BlocksOf(model, group.layers, backward)) {
      swap.weights += model.blocks[block].weight_bytes * loads;
    }
  };
  const auto read_inputs = [&](model::LayerRange layers) {
    for (int input : model::InputsOf(model, layers))
      swap.tokens += model::InputBytes(model, input, samples);
  };
  for (const LayerGroup& group : plan.forward_groups) {
    load(group, false);
    read_inputs(group.layers);
  }
  for (size_t i = 0; i < plan.backward_groups.size(); ++i) {
    const LayerGroup& group = plan.backward_groups[i];
    const bool fused = i + 1 == plan.backward_groups.size();
    if (!group.keep_weights) load(group, !fused);
    read_inputs(group.layers);
    const int boundary = StashBoundary(group);
    if (!fused && boundary > 0 && !group.keep_stash) {
      swap.stash += boundary_bytes(boundary);  // back in
    }
    if (plan.update == job::UpdateMode::kEager && group.layers.first > 0) {
      swap.boundary_commit += boundary_bytes(group.layers.first);
    }
  }
  for (const StashSpec& stash : StashesOf(plan)) {
    if (stash.kept) continue;
    swap.stash += boundary_bytes(stash.boundary);  // out
  }
  for (const model::ParameterReference& reference : model.references) {
    swap.gradients += model.blocks[reference.block].gradient_bytes *
                      BackwardGroupOf(plan, reference.layer).gradient_parts;
  }
  return swap;
}

}  // namespace harmony::plan
