#include "common/plan/plan_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/model/sum_tree.h"

namespace harmony::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostSlots = 1024;

Json GroupsToJson(const std::vector<LayerGroup>& groups, bool backward) {
  Json json = Json::array();
  for (const LayerGroup& group : groups) {
    Json one;
    one["first_layer"] = group.layers.first;
    one["last_layer"] = group.layers.last;
    one["devices"] = std::vector<int>(group.devices.begin(), group.devices.end());
    if (backward) {
      one["keep_weights"] = group.keep_weights;
      one["keep_stash"] = group.keep_stash;
      one["keep_activations"] = group.keep_activations;
      one["gradient_parts"] = group.gradient_parts;
    }
    json.push_back(std::move(one));
  }
  return json;
}

int CountOf(const document::JsonField& field) {
  return static_cast<int>(field.Integer(1, limits::kMostMicrobatches));
}

// What the groups of a file may name.
struct DevicesThere {
  int count = 0;
  int replicas = 1;
  bool each_runs_all = false;  // of a plan of before groups had several, with mode: harmony-dp
};

int DeviceOf(const document::JsonField& field, int num_devices) {
  const int64_t device = field.Integer(0);
  if (field.ok() && device >= num_devices) {
    field.Wrong(num_devices == 1 ? absl::StrCat("is ", device, "; it can only be 0")
                                 : absl::StrCat("is ", device, "; the plan is for ", num_devices,
                                                " devices, from 0"));
  }
  return static_cast<int>(device);
}

// Plans of before a group could have several devices name one.
DeviceSet DevicesOf(const document::JsonField& item, const DevicesThere& there) {
  if (!item.Has("devices")) {
    const int device = DeviceOf(item.Get("device"), there.each_runs_all ? 1 : there.count);
    return there.each_runs_all ? DeviceSet::All(there.count, there.replicas) : DeviceSet(device);
  }
  std::vector<int> entries;
  const document::JsonField field = item.Get("devices");
  for (const document::JsonField& device : field.Items()) {
    entries.push_back(DeviceOf(device, there.count));
  }
  const DeviceSet devices = DeviceSet::Of(entries);
  if (item.ok() && (devices.size() == 0 || there.replicas % devices.size() != 0)) {
    field.Wrong(absl::StrCat("has ", devices.size(), " entries; they must divide replicas, ",
                             there.replicas));
  }
  return devices;
}

std::vector<LayerGroup> GroupsOf(const document::JsonField& field, const DevicesThere& there,
                                 bool backward) {
  std::vector<LayerGroup> groups;
  int64_t next = 0;
  for (const document::JsonField& item : field.Items()) {
    if (backward) {
      item.Only({"first_layer", "last_layer", "device", "devices", "keep_weights", "keep_stash",
                 "keep_activations", "gradient_parts"});
    } else {
      item.Only({"first_layer", "last_layer", "device", "devices"});
    }
    const int64_t first = item.Get("first_layer").Integer(0, limits::kMostLayers);
    const int64_t last = item.Get("last_layer").Integer(0, limits::kMostLayers);
    LayerGroup& group = groups.emplace_back();
    group.devices = DevicesOf(item, there);
    if (backward) {
      group.keep_weights = item.Get("keep_weights").Flag();
      group.keep_stash = item.Get("keep_stash").Flag();
      // Plans of before there was a choice recompute.
      group.keep_activations = item.Has("keep_activations") && item.Get("keep_activations").Flag();
      group.gradient_parts =
          item.Has("gradient_parts") ? CountOf(item.Get("gradient_parts")) : there.replicas;
      if (item.ok() && there.replicas % group.gradient_parts != 0) {
        item.Get("gradient_parts")
            .Wrong(absl::StrCat("is ", group.gradient_parts, "; it must divide replicas, ",
                                there.replicas));
      }
    }
    if (!item.ok()) break;
    if (first != next) {
      item.Get("first_layer").Wrong(absl::StrCat("is ", first, "; layer ", next, " is next"));
    } else if (last < first) {
      item.Get("last_layer").Wrong(absl::StrCat("is ", last, ", the group begins with ", first));
    }
    group.layers = {static_cast<int>(first), static_cast<int>(last)};
    next = last + 1;
  }
  return groups;
}

// Plans of before groups named their devices say how all of them lie on the devices.
bool ReadMode(const document::JsonField& field) {
  if (!field.Has("mode")) return false;
  const std::string mode = field.Get("mode").Text();
  if (field.ok() && mode != "harmony-pp" && mode != "harmony-dp") {
    field.Get("mode").Wrong(absl::StrCat("is '", mode, "'; known are harmony-pp, harmony-dp"));
  }
  return mode == "harmony-dp";
}

void ReadReplicas(const document::JsonField& field, Plan* plan) {
  if (!field.Has("replicas")) return;  // there was no choice before
  plan->replicas = CountOf(field.Get("replicas"));
  if (field.ok() &&
      (!model::IsPowerOfTwo(plan->replicas) || plan->num_microbatches % plan->replicas != 0)) {
    field.Get("replicas")
        .Wrong(absl::StrCat("is ", plan->replicas, "; it must be a power of two that divides ",
                            "num_microbatches, ", plan->num_microbatches));
  }
}

Plan PlanOf(const document::JsonField& field) {
  field.Only({"schema", "mode", "replicas", "devices", "micro_batch_size", "num_microbatches",
              "sequence_length", "update", "gradient_dtype", "pass_weights", "forward_span",
              "stream_slots", "forward_groups", "backward_groups"});
  Plan plan;
  const std::string schema = field.Get("schema").Text();
  if (field.ok() && schema != kPlanSchema) {
    field.Get("schema").Wrong(absl::StrCat("is '", schema, "'; this is ", kPlanSchema));
  }
  const int64_t devices = field.Get("devices").Integer(1, limits::kMostDevices);
  plan.devices.resize(field.ok() ? devices : 0);
  plan.microbatch_size = field.Get("micro_batch_size").Integer(1, limits::kMostSequences);
  plan.num_microbatches = CountOf(field.Get("num_microbatches"));
  plan.sequence_length = field.Get("sequence_length").Integer(1, limits::kMostTokens);
  ReadReplicas(field, &plan);
  const std::string update = field.Get("update").Text();
  plan.update = update == "deferred" ? job::UpdateMode::kDeferred : job::UpdateMode::kEager;
  if (field.ok() && update != "deferred" && update != "eager") {
    field.Get("update").Wrong(absl::StrCat("is '", update, "'; known are eager, deferred"));
  }
  if (field.Has("gradient_dtype")) {  // there was no choice before
    plan.gradient_dtype = field.Get("gradient_dtype").Precision();
  }
  // Nor here: all weights came from the host.
  plan.pass_weights = field.Has("pass_weights") && field.Get("pass_weights").Flag();
  plan.microbatches_per_forward_task = CountOf(field.Get("forward_span"));
  if (field.ok() && plan.num_microbatches % plan.microbatches_per_forward_task != 0) {
    field.Get("forward_span")
        .Wrong(absl::StrCat("is ", plan.microbatches_per_forward_task,
                            "; it must divide num_microbatches, ", plan.num_microbatches));
  }
  plan.stream_slots = static_cast<int>(field.Get("stream_slots").Integer(1, kMostSlots));
  const DevicesThere there{static_cast<int>(devices), plan.replicas, ReadMode(field)};
  plan.forward_groups = GroupsOf(field.Get("forward_groups"), there, false);
  plan.backward_groups = GroupsOf(field.Get("backward_groups"), there, true);
  if (field.ok() && plan.backward_groups.empty()) {
    field.Get("backward_groups").Wrong("has no group");
  }
  return plan;
}

}  // namespace

std::string PlanFileText(const Plan& plan) {
  Json json;
  json["schema"] = kPlanSchema;
  json["replicas"] = plan.replicas;
  json["devices"] = plan.devices.size();
  json["micro_batch_size"] = plan.microbatch_size;
  json["num_microbatches"] = plan.num_microbatches;
  json["sequence_length"] = plan.sequence_length;
  json["update"] = ToString(plan.update);
  json["gradient_dtype"] = PrecisionName(plan.gradient_dtype);
  json["pass_weights"] = plan.pass_weights;
  json["forward_span"] = plan.microbatches_per_forward_task;
  json["stream_slots"] = plan.stream_slots;
  json["forward_groups"] = GroupsToJson(plan.forward_groups, false);
  json["backward_groups"] = GroupsToJson(plan.backward_groups, true);
  return json.dump();
}

absl::StatusOr<Plan> ParsePlanFile(absl::string_view text, absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json json, document::ParseJsonFields(text, where));
  absl::Status status;
  const document::JsonField root(&json, where, &status);
  const bool whole = json.is_object() && json.contains("plan");
  if (whole) {
    root.Only({"mode", "virtual_replicas", "precision", "fits", "plan", "num_microbatches",
               "micro_batch_size", "forward_micro_batch_size", "update", "clip", "stash",
               "footprint", "devices", "groups", "host", "minimal_swap", "time_estimate"});
  }
  Plan plan = PlanOf(whole ? root.Get("plan") : root);
  HARMONY_RETURN_IF_ERROR(status);
  const int forward = plan.forward_groups.empty() ? 0 : plan.forward_groups.back().layers.last + 1;
  const int fused = plan.backward_groups.back().layers.first;
  if (forward != fused) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": forward_groups: the forward groups end before layer ", forward,
                     ", the last backward group begins with ", fused));
  }
  return plan;
}

}  // namespace harmony::plan
