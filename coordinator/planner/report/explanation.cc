// What there is to say about a plan, as text and as JSON.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "common/plan/plan_json.h"
#include "coordinator/planner/fit/device_need.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/time_text.h"

namespace harmony::planner {
namespace {

using Json = nlohmann::ordered_json;

// Of a device's memory, what plans leave to others.
std::string BesideUsable(const plan::DeviceSpec& device) {
  if (device.context.count() > 0) {
    return absl::StrCat(" beside a context of ", FormatBytes(device.context));
  }
  if (device.reserve().count() == 0) return "";
  return absl::StrCat(" beside ", FormatBytes(device.reserve()), " for what LibTorch computes in");
}

// Without stashes and boundary commits; parameters counted once.
double BytesPerParameter(const model::ModelSpec& model, const plan::ArenaLayout& layout) {
  const Bytes bytes = layout.end() - layout.stash_and_boundary_bytes();
  return static_cast<double>(bytes.count()) / static_cast<double>(model.parameter_count());
}

const char* UpdateName(const plan::Plan& plan) {
  return plan.clip ? "deferred, clipped" : ToString(plan.update);
}

const char* StashName(const plan::Plan& plan) {
  const plan::Stashes stashes = plan::StashesOf(plan);
  const auto kept = std::count_if(stashes.begin(), stashes.end(),
                                  [](const plan::StashSpec& stash) { return stash.kept; });
  if (kept == 0) return "host";
  return kept == static_cast<int64_t>(stashes.size()) ? "device" : "host and device";
}

// How the batch is divided, in words; nothing where it is not.
std::string ModeText(const plan::Plan& plan) {
  std::string text;
  const absl::string_view mode = plan::ModeOf(plan);
  if (mode == "harmony-dp") {
    const plan::LayerGroup& group = plan.backward_groups.back();
    const int shards = group.devices.num_shards(), devices = static_cast<int>(plan.devices.size());
    std::vector<int> counts;  // microbatches of each
    for (int i = 0; i < shards; ++i) counts.push_back(plan::ShardOf(plan, group, i).count);
    const bool equal = absl::c_all_of(counts, [&](int count) { return count == counts[0]; });
    absl::StrAppendFormat(
        &text,
        "Data parallel: %d devices run each all layer groups with %s of the %d microbatches%s\n",
        shards, equal ? absl::StrCat(counts[0]) : absl::StrJoin(counts, ", "),
        plan.num_microbatches,
        shards < devices ? absl::StrFormat("; %d idle", devices - shards) : "");
  } else if (mode == "mixed") {
    int several = 0;
    for (const auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
      several += static_cast<int>(absl::c_count_if(
          *groups, [](const plan::LayerGroup& group) { return group.devices.num_shards() > 1; }));
    }
    absl::StrAppendFormat(
        &text,
        "%d of %d groups (forward and backward) run on several devices, which share their "
        "microbatches\n",
        several, plan.forward_groups.size() + plan.backward_groups.size());
  }
  std::set<std::pair<int, int>> passed;
  for (const auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const plan::LayerGroup& group : *groups) {
      for (int shard = 0; shard < group.devices.num_shards(); ++shard) {
        const int peer = plan::WeightPeer(plan, group, shard);
        if (peer < 0) continue;
        passed.emplace(plan::ShardOf(plan, group, peer).device,
                       plan::ShardOf(plan, group, shard).device);
      }
    }
  }
  if (!passed.empty()) {
    absl::StrAppend(&text, "Weights go on from device to device (",
                    absl::StrJoin(passed, ", ", absl::PairFormatter(" to ")),
                    "): a link that devices share carries them once\n");
  }
  if (plan.replicas > 1) {
    absl::StrAppendFormat(&text,
                          "%d replicas of %d microbatches each (virtual_replicas): gradients are "
                          "added up over each, then pairwise\n",
                          plan.replicas, plan.replica_microbatches());
  }
  return text;
}

// "bf16, fp32 gradients,"
std::string PrecisionText(const model::ModelSpec& model) {
  if (!model::HasMasters(model)) return model::PrecisionName(model);
  return absl::StrCat(model::PrecisionName(model), ", ", PrecisionName(model.gradient_dtype),
                      " gradients,");
}

std::string Row(absl::string_view name, Bytes bytes) {
  return absl::StrFormat("  %-25s %s\n", name, FormatBytes(bytes));
}

std::string Traffic(absl::string_view name, const PlanResult& result, command::TrafficClass traffic,
                    Bytes least) {
  const Bytes predicted(result.estimate.bytes[static_cast<size_t>(traffic)]);
  return absl::StrFormat("  %-25s %12s %12s\n", name, FormatBytes(predicted), FormatBytes(least));
}

Json DevicesToJson(const plan::Plan& plan, const std::vector<GroupNeed>& needs) {
  Json devices = Json::array();
  for (const DeviceNeed& use : NeedOfDevices(plan, needs)) {
    const size_t d = devices.size();
    devices.push_back({{"device", d},
                       {"memory", plan.devices[d].memory.count()},
                       {"resident", plan.devices[d].resident.count()},
                       {"need_resident", use.resident.resident().count()},
                       {"kept", use.resident.kept.count()},
                       {"need_workspace", use.workspace.workspace.count()},
                       {"fits", true}});
  }
  return devices;
}

Json GroupsToJson(const std::vector<GroupNeed>& needs) {
  Json groups = Json::array();
  for (const GroupNeed& need : needs) {
    groups.push_back({{"kind", KindName(need.kind)},
                      {"group", need.group},
                      {"first_layer", need.layers.first},
                      {"last_layer", need.layers.last},
                      {"device", need.device},
                      {"weights", need.weights.count()},
                      {"gradients", need.gradients.count()},
                      {"gradient_parts", need.gradient_parts},
                      {"buffers", need.streaming.count()},
                      {"workspace", need.workspace.count()},
                      {"keep_weights", need.keeps_weights},
                      {"keep_stash", need.keeps_stash},
                      {"keep_activations", need.keeps_activations}});
  }
  return groups;
}

// To three digits.
double Rounded(double number) { return std::round(1000 * number) / 1000; }

}  // namespace

std::string ExplainPlan(const model::ModelSpec& model, const PlanResult& result,
                        const plan::MachineSpec& machine) {
  const plan::Plan& plan = result.plan;
  const std::vector<GroupNeed> needs = NeedOfGroups(model, plan);
  const plan::ArenaLayout layout(model, plan);
  const model::Footprint footprint =
      model::ComputeFootprint(model, plan.global_batch(), plan.optimizer_moments);
  Bytes devices;
  for (const plan::DevicePlan& device : plan.devices) devices += device.memory;
  std::string text = absl::StrFormat(
      "%s in %s on %d device%s: %d microbatches of %s%s, %d layer groups, updates %s, stashes "
      "on the %s\n",
      plan::ModeOf(plan), PrecisionText(model), plan.devices.size(),
      plan.devices.size() == 1 ? "" : "s", plan.num_microbatches,
      plan.sequence_length == 1
          ? absl::StrCat(plan.microbatch_size, plan.microbatch_size == 1 ? " sample" : " samples")
          : absl::StrCat(plan.microbatch_size, " x ", plan.sequence_length, " tokens"),
      plan.microbatches_per_forward_task > 1
          ? absl::StrCat(" (", plan.microbatches_per_forward_task, " at once in forward)")
          : "",
      plan.backward_groups.size(), UpdateName(plan), StashName(plan));
  text += ModeText(plan);
  absl::StrAppendFormat(&text, "Footprint %s; device memory together %s (%.0f%% of it)\n",
                        FormatBytes(footprint.total()), FormatBytes(devices),
                        100.0 * static_cast<double>(devices.count()) /
                            static_cast<double>(footprint.total().count()));
  text += Row("weights", footprint.weights) +
          (model::HasMasters(model) ? Row("fp32 masters", footprint.masters) : "") +
          Row("gradients", footprint.gradients) +
          Row("optimizer state", footprint.optimizer_state) +
          Row("activations", footprint.activations);

  text += "Devices\n";
  const std::vector<DeviceNeed> uses = NeedOfDevices(plan, needs);
  for (size_t d = 0; d < uses.size(); ++d) {
    const std::string name =
        d < machine.devices.size() ? ToString(machine.devices[d]) : absl::StrCat("device ", d);
    const GroupNeed& hungriest = uses[d].resident;
    if (hungriest.resident() == Bytes(0)) {
      absl::StrAppendFormat(&text, "  %d  %s: runs no group\n", d, name);
      continue;
    }
    const plan::DeviceSpec spec =
        d < machine.devices.size() ? machine.devices[d] : plan::DeviceSpec();
    absl::StrAppendFormat(
        &text, "  %d  %s: needs %s + %s workspace of %s%s (%s of layers %d-%d): fits\n", d, name,
        FormatBytes(hungriest.resident()), FormatBytes(uses[d].workspace.workspace),
        FormatBytes(plan.devices[d].memory), BesideUsable(spec), KindName(hungriest.kind),
        hungriest.layers.first, hungriest.layers.last);
    if (hungriest.kept.count() > 0) {
      absl::StrAppendFormat(&text, "     keeps %s of it from forward to backward\n",
                            FormatBytes(hungriest.kept));
    }
  }

  const auto devices_of = [&plan](const GroupNeed& need) -> std::string {
    const plan::DeviceSet& devices = dispatch::PlannedGroup(plan, need.kind, need.group).devices;
    if (devices.size() == 1) return absl::StrCat("device ", need.device);
    const bool all = devices.size() == devices.num_shards() &&
                     devices.size() == static_cast<int>(plan.devices.size());
    return all ? "each device" : absl::StrCat("devices ", devices.ToString());
  };
  text += "Groups\n";
  for (const GroupNeed& need : needs) {
    if (need.shard > 0) continue;  // the same on each of its devices
    absl::StrAppendFormat(
        &text,
        "  %-16s %2d  layers %d-%d on %s: weights %s, gradients %s%s, buffers %s, "
        "workspace %s%s%s%s\n",
        KindName(need.kind), need.group, need.layers.first, need.layers.last, devices_of(need),
        FormatBytes(need.weights), FormatBytes(need.gradients),
        need.gradient_parts > 1 ? absl::StrCat(" (leave in ", need.gradient_parts, " parts)") : "",
        FormatBytes(need.streaming), FormatBytes(need.workspace),
        need.keeps_weights ? ", weights kept" : "", need.keeps_stash ? ", stash kept" : "",
        need.keeps_activations ? ", activations kept" : "");
  }

  absl::StrAppendFormat(&text, "Host arena %s", FormatBytes(layout.end()));
  if (machine.host_memory.count() > 0) {
    absl::StrAppend(&text, " of ", FormatBytes(machine.host_memory), ": fits");
  }
  absl::StrAppendFormat(&text, " (%.2f bytes a parameter without stashes and boundary commits)\n",
                        BytesPerParameter(model, layout));
  const bool masters = model::HasMasters(model);
  text +=
      Row(masters ? "weights, masters, moments" : "weights, moments", layout.persistent_bytes()) +
      Row("stashes, boundary", layout.stash_and_boundary_bytes()) +
      Row("gradients, other", layout.dynamic_bytes() - layout.stash_and_boundary_bytes());

  const plan::MinimalSwap swap = plan::ComputeMinimalSwap(model, plan);
  text += "Traffic between host and devices, per step: predicted, and the least for these groups\n";
  text += Traffic("weights", result, command::TrafficClass::kWeights, swap.weights) +
          Traffic("gradients", result, command::TrafficClass::kGradients, swap.gradients) +
          Traffic("stash", result, command::TrafficClass::kStash, swap.stash) +
          Traffic("boundary commits", result, command::TrafficClass::kBoundaryCommit,
                  swap.boundary_commit) +
          Traffic("boundary tensors", result, command::TrafficClass::kBoundary, Bytes(0)) +
          Traffic("tokens", result, command::TrafficClass::kTokens, swap.tokens);
  text += Row("device to device", Bytes(result.estimate.peer_bytes));
  return text + TimeText(result);
}

std::string PlanToJson(const model::ModelSpec& model, const PlanResult& result,
                       const plan::MachineSpec& machine) {
  const plan::Plan& plan = result.plan;
  const std::vector<GroupNeed> needs = NeedOfGroups(model, plan);
  const plan::ArenaLayout layout(model, plan);
  const model::Footprint footprint =
      model::ComputeFootprint(model, plan.global_batch(), plan.optimizer_moments);
  const plan::MinimalSwap swap = plan::ComputeMinimalSwap(model, plan);
  Json json;
  json["mode"] = plan::ModeOf(plan);
  json["virtual_replicas"] = plan.replicas;
  json["precision"] = model::PrecisionName(model);
  json["fits"] = true;
  json["plan"] = Json::parse(plan::PlanFileText(plan));
  json["num_microbatches"] = plan.num_microbatches;
  json["micro_batch_size"] = plan.microbatch_size;
  json["forward_micro_batch_size"] = plan.forward_size();
  json["update"] = ToString(plan.update);
  json["clip"] = plan.clip;
  json["stash"] = StashName(plan);
  json["footprint"] = {{"weights", footprint.weights.count()},
                       {"masters", footprint.masters.count()},
                       {"gradients", footprint.gradients.count()},
                       {"optimizer_state", footprint.optimizer_state.count()},
                       {"activations", footprint.activations.count()},
                       {"total", footprint.total().count()}};
  json["devices"] = DevicesToJson(plan, needs);
  json["groups"] = GroupsToJson(needs);
  json["host"] = {{"memory", machine.host_memory.count()},
                  {"arena", layout.end().count()},
                  {"persistent", layout.persistent_bytes().count()},
                  {"dynamic", layout.dynamic_bytes().count()},
                  {"stash_and_boundary", layout.stash_and_boundary_bytes().count()},
                  {"bytes_per_parameter", Rounded(BytesPerParameter(model, layout))},
                  {"fits", true}};
  json["minimal_swap"] = {{"weights", swap.weights.count()},
                          {"gradients", swap.gradients.count()},
                          {"stash", swap.stash.count()},
                          {"boundary_commit", swap.boundary_commit.count()},
                          {"tokens", swap.tokens.count()}};
  json["time_estimate"] = TimeJson(result);
  return json.dump();
}

}  // namespace harmony::planner
