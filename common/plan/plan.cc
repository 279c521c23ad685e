#include "common/plan/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace harmony {
namespace {

std::string GroupsText(const std::vector<LayerGroup>& groups) {
  std::string text;
  for (const LayerGroup& group : groups) {
    absl::StrAppend(&text, text.empty() ? "" : " ", group.layers.first, "-", group.layers.last, "@",
                    group.device);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string DebugString(const Plan& plan) {
  std::string text = absl::StrCat(
      plan.num_microbatches, " microbatches of ", plan.microbatch_size, " x ", plan.sequence_length,
      "; forward ", GroupsText(plan.forward_groups), "; backward ",
      GroupsText(plan.backward_groups), "; ",
      plan.update == UpdateMode::kEager ? "eager" : "deferred", plan.clip ? ", clipped" : "",
      "; slots ", plan.stream_slots, "; arena ", FormatBytes(plan.arena_dynamic));
  for (size_t i = 0; i < plan.devices.size(); ++i) {
    absl::StrAppend(&text, "; device ", i, " ", FormatBytes(plan.devices[i].resident), " of ",
                    FormatBytes(plan.devices[i].memory));
  }
  return text;
}

int StashBoundary(const LayerGroup& group) {
  if (group.layers.first > 0) return group.layers.first;
  return group.layers.last > 0 ? 1 : -1;
}

std::vector<int> StashedBoundaries(const Plan& plan) {
  std::vector<int> result;
  for (size_t i = 0; i < plan.backward_groups.size(); ++i) {
    const LayerGroup& group = plan.backward_groups[i];
    const bool fused = i + 1 == plan.backward_groups.size();
    const int boundary = fused ? group.layers.first : StashBoundary(group);
    if (boundary > 0) result.push_back(boundary);
  }
  return result;
}

std::vector<int> UsesOf(const ModelSpec& model, LayerRange layers) {
  std::vector<int> uses;
  for (int layer = layers.first; layer <= layers.last; ++layer) {
    const std::vector<int>& more = model.layers[layer].uses;
    uses.insert(uses.end(), more.begin(), more.end());
  }
  return uses;
}

std::vector<int> BlocksOf(const ModelSpec& model, LayerRange layers, bool backward) {
  std::vector<int> blocks;
  for (int use : UsesOf(model, layers)) {
    if (backward && !model.uses[use].needed_in_backward) continue;
    const int block = model.uses[use].block;
    if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) blocks.push_back(block);
  }
  return blocks;
}

MinimalSwap ComputeMinimalSwap(const ModelSpec& model, const Plan& plan) {
  MinimalSwap swap;
  const int64_t samples = plan.global_batch();
  auto load = [&](LayerRange layers, bool backward) {
    for (int block : BlocksOf(model, layers, backward)) swap.weights += model.blocks[block].size();
  };
  for (const LayerGroup& group : plan.forward_groups) load(group.layers, false);
  for (size_t i = 0; i < plan.backward_groups.size(); ++i) {
    const LayerGroup& group = plan.backward_groups[i];
    const bool fused = i + 1 == plan.backward_groups.size();
    load(group.layers, !fused);
    const int boundary = StashBoundary(group);
    if (!fused && boundary > 0) {
      swap.stash += BoundaryBytes(model, boundary, samples, plan.sequence_length);  // back in
    }
    if (plan.update == UpdateMode::kEager && group.layers.first > 0) {
      swap.boundary_commit +=
          BoundaryBytes(model, group.layers.first, samples, plan.sequence_length);
    }
  }
  for (int boundary : StashedBoundaries(plan)) {
    swap.stash += BoundaryBytes(model, boundary, samples, plan.sequence_length);  // out
  }
  for (const ParamUse& use : model.uses) swap.gradients += model.blocks[use.block].size();
  // Tokens for the forward and for the embedding's gradient (fused: once), and the labels.
  const int64_t reads = plan.backward_groups.size() == 1 ? 2 : 3;
  swap.tokens = Bytes(samples * plan.sequence_length * 4) * reads;
  return swap;
}

}  // namespace harmony
