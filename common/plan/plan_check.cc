// CheckShape and CheckPlan: what a plan must be, whoever made it.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/sum_tree.h"
#include "common/plan/plan.h"

namespace harmony::plan {
namespace {

// The entries divide the replicas, and are devices there are, each in one run.
absl::Status CheckDevices(const Plan& plan, const LayerGroup& group, absl::string_view name) {
  const DeviceSet& devices = group.devices;
  if (devices.size() == 0 || plan.replicas % devices.size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " on ", devices.size(),
                                                   " devices, which do not divide the ",
                                                   plan.replicas, " replicas of a step"));
  }
  for (int i = 0; i < devices.size(); ++i) {
    const int device = devices[i], count = static_cast<int>(plan.devices.size());
    if (device < 0 || device >= count) {
      return absl::InvalidArgumentError(absl::StrCat(name, " on device ", device, " of ", count));
    }
    for (int before = 0; before + 1 < i; ++before) {
      if (devices[before] != device || devices[i - 1] == device) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, " on device ", device, " twice (",
                                                     devices.ToString(), "), others between"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const Plan& plan, const std::vector<LayerGroup>& groups,
                         absl::string_view field) {
  int next = 0;
  for (const LayerGroup& group : groups) {
    const std::string name =
        absl::StrCat(field, " of layers ", group.layers.first, " to ", group.layers.last);
    if (group.layers.first != next || group.layers.last < group.layers.first) {
      return absl::InvalidArgumentError(absl::StrCat(name, " where layer ", next, " is next"));
    }
    HARMONY_RETURN_IF_ERROR(CheckDevices(plan, group, name));
    next = group.layers.last + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckParts(const Plan& plan) {
  for (const LayerGroup& group : plan.backward_groups) {
    const int parts = group.gradient_parts;
    const bool divides = parts >= 1 && plan.replicas % parts == 0;
    if (divides && CanAddUp(plan, group, parts)) continue;
    const std::string name = absl::StrCat("backward group of layers ", group.layers.first, " to ",
                                          group.layers.last, ": ");
    if (!divides) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, parts, " parts of gradients (gradient_parts) do not divide ",
                       plan.replicas, " replicas"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, "devices ", group.devices.ToString(), " cannot add up gradients in ",
                     parts, parts > 1 ? " parts" : " part",
                     " (gradient_parts): one of them has no aligned range of it; ",
                     group.devices.size(), " parts always can"));
  }
  return absl::OkStatus();
}

// What adds up a block's gradients takes as many parts of each.
absl::Status CheckTiedParts(const model::ModelSpec& model, const Plan& plan) {
  for (const model::ParamBlock& block : model.blocks) {
    const auto group_of = [&](int reference) -> const LayerGroup& {
      return BackwardGroupOf(plan, model.references[reference].layer);
    };
    const LayerGroup& first = group_of(block.references.front());
    for (int reference : block.references) {
      const LayerGroup& other = group_of(reference);
      if (other.gradient_parts == first.gradient_parts) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "gradients of '", block.name, "' leave the backward group of layers ", first.layers.first,
          " to ", first.layers.last, " in ", first.gradient_parts,
          " parts (gradient_parts), that of layers ", other.layers.first, " to ", other.layers.last,
          " in ", other.gradient_parts, "; a tied tensor's need as many"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckForwardTasks(const Plan& plan) {
  const int task = plan.microbatches_per_forward_task;
  for (const std::vector<LayerGroup>* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const LayerGroup& group : *groups) {
      const int each = plan.entry_microbatches(group);
      if (task >= 1 && each % task == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "forward tasks of ", task, " microbatches at once (forward_span) do not divide the ",
          each, group.devices.size() > 1 ? " of a device" : " of a step"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKept(const Plan& plan, const LayerGroup& group) {
  const std::string name =
      absl::StrCat("the backward group of layers ", group.layers.first, " to ", group.layers.last);
  if ((group.keep_weights || group.keep_activations) && !CanKeepWeights(plan, group)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " keeps ",
        group.keep_weights ? "weights (keep_weights)" : "activations (keep_activations)",
        ", but no forward group of these layers runs on device ", group.devices.ToString()));
  }
  if (group.keep_stash && !CanKeepStash(plan, group)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " keeps its stash (keep_stash) on device ", group.devices.ToString(),
                     ", of which one makes some of what it keeps, and some that others keep"));
  }
  if (!group.keep_activations) return absl::OkStatus();
  const std::string keeps = absl::StrCat(name, " keeps activations (keep_activations)");
  if (StashBoundary(group) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(keeps, ", but the embedding has none"));
  }
  if (!group.keep_stash) {
    return absl::InvalidArgumentError(
        absl::StrCat(keeps, ", but not its stash (keep_stash), which is the first of them"));
  }
  if (plan.microbatches_per_forward_task > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(keeps, " of forward tasks of ", plan.microbatches_per_forward_task,
                     " microbatches at once (forward_span); only those of one can be kept"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShape(const Plan& plan) {
  if (!model::IsPowerOfTwo(plan.replicas) || plan.num_microbatches % plan.replicas != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan.replicas, " replicas are no power of two that divides the ",
                     plan.num_microbatches, " microbatches of a step"));
  }
  HARMONY_RETURN_IF_ERROR(CheckGroups(plan, plan.forward_groups, "forward group"));
  HARMONY_RETURN_IF_ERROR(CheckGroups(plan, plan.backward_groups, "backward group"));
  if (plan.backward_groups.empty()) return absl::InvalidArgumentError("no backward group");
  const int ahead = plan.forward_groups.empty() ? 0 : plan.forward_groups.back().layers.last + 1;
  if (ahead != plan.backward_groups.back().layers.first) {
    return absl::InvalidArgumentError(absl::StrCat("the forward groups end before layer ", ahead,
                                                   ", the last backward group starts with layer ",
                                                   plan.backward_groups.back().layers.first));
  }
  HARMONY_RETURN_IF_ERROR(CheckParts(plan));
  HARMONY_RETURN_IF_ERROR(CheckForwardTasks(plan));
  for (const LayerGroup& group : plan.backward_groups) {
    HARMONY_RETURN_IF_ERROR(CheckKept(plan, group));
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const model::ModelSpec& model, const Plan& plan) {
  HARMONY_RETURN_IF_ERROR(CheckShape(plan));
  const int end = plan.backward_groups.back().layers.last;
  if (end + 1 != model.num_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("the backward groups end with layer ", end,
                                                   ", the model has layers 0 to ",
                                                   model.num_layers() - 1));
  }
  if (plan.gradient_dtype != model.gradient_dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradients of ", PrecisionName(plan.gradient_dtype),
        " (gradient_dtype), but the job, or the run that it goes on with, has them of ",
        PrecisionName(model.gradient_dtype)));
  }
  HARMONY_RETURN_IF_ERROR(CheckTiedParts(model, plan));
  const int task = plan.microbatches_per_forward_task;
  if (task == 1 || LargerForwardTasksAllowed(model, plan)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "what crosses a boundary for a microbatch cannot be part of that of forward tasks of ", task,
      " microbatches: it is not one tensor of a multiple of ", kSlotAlignment, " bytes"));
}

}  // namespace harmony::plan
