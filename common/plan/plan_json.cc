#include "common/plan/plan_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"

namespace harmony::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostSlots = 1024;

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

int CountOf(const document::JsonField& field) { return field.Int(1, limits::kMostMicrobatches); }

std::vector<LayerGroup> GroupsOf(const document::JsonField& field, bool backward) {
  std::vector<LayerGroup> groups;
  for (const document::JsonField& item : field.Items()) {
    LayerGroup& group = groups.emplace_back();
    group.layers = {item.Get("first_layer").Int(0, limits::kMostLayers),
                    item.Get("last_layer").Int(0, limits::kMostLayers)};
    std::vector<int> devices;
    for (const document::JsonField& device : item.Get("devices").Items()) {
      devices.push_back(device.Int(0, limits::kMostDevices - 1));
    }
    group.devices = DeviceSet::Of(devices);
    if (!backward) {
      item.Only({"first_layer", "last_layer", "devices"});
      continue;
    }
    item.Only({"first_layer", "last_layer", "devices", "keep_weights", "keep_stash",
               "keep_activations", "gradient_parts"});
    group.keep_weights = item.Get("keep_weights").Flag();
    group.keep_stash = item.Get("keep_stash").Flag();
    group.keep_activations = item.Get("keep_activations").Flag();
    group.gradient_parts = CountOf(item.Get("gradient_parts"));
  }
  return groups;
}

Plan PlanOf(const document::JsonField& field) {
  field.Only({"schema", "replicas", "devices", "micro_batch_size", "num_microbatches",
              "sequence_length", "update", "gradient_dtype", "pass_weights", "forward_span",
              "stream_slots", "forward_groups", "backward_groups"});
  Plan plan;
  const std::string schema = field.Get("schema").Text();
  if (field.ok() && schema != kPlanSchema) {
    field.Get("schema").Wrong(absl::StrCat("is '", schema, "'; this is ", kPlanSchema));
  }
  plan.devices.resize(static_cast<size_t>(field.Get("devices").Int(1, limits::kMostDevices)));
  plan.microbatch_size = field.Get("micro_batch_size").Integer(1, limits::kMostSequences);
  plan.num_microbatches = CountOf(field.Get("num_microbatches"));
  plan.sequence_length = field.Get("sequence_length").Integer(1, limits::kMostTokens);
  plan.replicas = CountOf(field.Get("replicas"));
  const std::string update = field.Get("update").Text();
  plan.update = update == "deferred" ? job::UpdateMode::kDeferred : job::UpdateMode::kEager;
  if (field.ok() && update != ToString(plan.update)) {
    field.Get("update").Wrong(absl::StrCat("is '", update, "'; known are eager, deferred"));
  }
  plan.gradient_dtype = field.Get("gradient_dtype").Precision();
  plan.pass_weights = field.Get("pass_weights").Flag();
  plan.microbatches_per_forward_task = CountOf(field.Get("forward_span"));
  plan.stream_slots = field.Get("stream_slots").Int(1, kMostSlots);
  plan.forward_groups = GroupsOf(field.Get("forward_groups"), false);
  plan.backward_groups = GroupsOf(field.Get("backward_groups"), true);
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
  HARMONY_RETURN_IF_ERROR_CTX(CheckShape(plan), where);
  return plan;
}

}  // namespace harmony::plan
