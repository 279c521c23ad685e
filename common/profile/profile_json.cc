#include "common/profile/profile_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"

namespace harmony::profile {
namespace {

using Json = nlohmann::ordered_json;
using Part = ProfileRequest::Part;

// ---- Writing ----

Json ToJson(const Measured& measured) {
  return {{"median", measured.median}, {"least", measured.least}, {"most", measured.most}};
}

Json ToJson(const LayerSizeProfile& size) {
  Json json;
  json["samples"] = size.samples;
  if (size.forward) json["forward_s"] = ToJson(*size.forward);
  json["backward_s"] = ToJson(size.backward);
  if (size.backward_inner) json["backward_inner_s"] = ToJson(*size.backward_inner);
  if (size.keeping_forward) json["keeping_forward_s"] = ToJson(*size.keeping_forward);
  if (size.kept_backward) json["kept_backward_s"] = ToJson(*size.kept_backward);
  json["forward_workspace_bytes"] = size.forward_workspace.count();
  json["backward_workspace_bytes"] = size.backward_workspace.count();
  json["activation_bytes"] = size.activation_bytes.count();
  return json;
}

Json ToJson(const LayerProfile& layer) {
  Json json;
  json["kind"] = layer.kind;
  json["layers"] = layer.layers;
  json["parameter_bytes"] = layer.parameter_bytes.count();
  json["input_bytes_per_sample"] = layer.input_bytes.count();
  json["zero_gradients_s"] = ToJson(layer.zero);
  json["check_gradients_s"] = ToJson(layer.check);
  json["sizes"] = Json::array();
  for (const LayerSizeProfile& size : layer.sizes) json["sizes"].push_back(ToJson(size));
  return json;
}

Json ToJson(const LinkProfile& link) {
  return {{"latency_s", ToJson(link.latency)},
          {"alone_bytes_per_s", ToJson(link.alone)},
          {"duplex_bytes_per_s", ToJson(link.duplex)},
          {"together_bytes_per_s", ToJson(link.together)}};
}

Json LayersToJson(const std::vector<LayerProfile>& layers) {
  Json json = Json::array();
  for (const LayerProfile& layer : layers) json.push_back(ToJson(layer));
  return json;
}

void AddLinks(const DeviceProfile& device, Json& json) {
  json["h2d"] = ToJson(device.h2d);
  json["d2h"] = ToJson(device.d2h);
  if (device.p2p) json["p2p"] = ToJson(*device.p2p);
}

Json ToJson(const HostProfile& host) {
  return {{"optimizer", host.optimizer},
          {"update_bytes_per_s", ToJson(host.update_rate)},
          {"norm_bytes_per_s", ToJson(host.norm_rate)},
          {"batch_bytes_per_s", ToJson(host.batch_rate)},
          {"initialize_bytes_per_s", ToJson(host.initialize_rate)},
          {"task_s", ToJson(host.task)},
          {"wake_s", ToJson(host.wake)}};
}

Json ToJson(const ProfileVersions& versions) {
  return {{"harmony", versions.harmony},
          {"torch", versions.torch},
          {"cpu_capability", versions.cpu_capability},
          {"cpu", versions.cpu},
          {"cores", versions.cores}};
}

// ---- Reading ----

Measured InOrder(const document::JsonField& field, const Measured& measured) {
  if (measured.median < measured.least) field.Get("median").Wrong("is below least");
  if (measured.median > measured.most) field.Get("median").Wrong("is above most");
  return measured;
}
Measured Above0(const document::JsonField& field, double least, double most) {
  field.Only({"median", "least", "most"});
  return InOrder(field,
                 {field.Get("median").Positive(least, most), field.Get("least").Positive(0, most),
                  field.Get("most").Positive(0, most)});
}
Measured Rate(const document::JsonField& field) {
  return Above0(field, limits::kLeastBytesPerSecond, limits::kMostBytesPerSecond);
}
Measured Time(const document::JsonField& field) { return Above0(field, 0, limits::kMostSeconds); }
// Of what may take no time that can be seen.
Measured ShortTime(const document::JsonField& field) {
  field.Only({"median", "least", "most"});
  return InOrder(field, {field.Get("median").NotNegative(limits::kMostSeconds),
                         field.Get("least").NotNegative(limits::kMostSeconds),
                         field.Get("most").NotNegative(limits::kMostSeconds)});
}

Bytes Size(const document::JsonField& field) { return Bytes(field.Integer(0, limits::kMostBytes)); }
double Together(const document::JsonField& field) {
  return field.Positive(limits::kLeastTogether, limits::kMostTogether);
}

LayerSizeProfile ReadSize(const document::JsonField& field) {
  field.Only({"samples", "forward_s", "backward_s", "backward_inner_s", "keeping_forward_s",
              "kept_backward_s", "forward_workspace_bytes", "backward_workspace_bytes",
              "activation_bytes"});
  LayerSizeProfile size;
  size.samples = field.Get("samples").Integer(1, limits::kMostSequences);
  if (field.Has("forward_s")) size.forward = Time(field.Get("forward_s"));
  size.backward = Time(field.Get("backward_s"));
  if (field.Has("backward_inner_s")) size.backward_inner = Time(field.Get("backward_inner_s"));
  if (field.Has("keeping_forward_s")) size.keeping_forward = Time(field.Get("keeping_forward_s"));
  if (field.Has("kept_backward_s")) size.kept_backward = Time(field.Get("kept_backward_s"));
  size.forward_workspace = Size(field.Get("forward_workspace_bytes"));
  size.backward_workspace = Size(field.Get("backward_workspace_bytes"));
  size.activation_bytes = Size(field.Get("activation_bytes"));
  return size;
}

LayerProfile ReadLayer(const document::JsonField& field) {
  field.Only({"kind", "layers", "parameter_bytes", "input_bytes_per_sample", "zero_gradients_s",
              "check_gradients_s", "sizes"});
  LayerProfile layer;
  layer.kind = field.Get("kind").Text();
  if (layer.kind.empty()) field.Get("kind").Wrong("must not be empty");
  for (const document::JsonField& index : field.Get("layers").Items()) {
    layer.layers.push_back(static_cast<int>(index.Integer(0, limits::kMostLayers)));
  }
  layer.parameter_bytes = Size(field.Get("parameter_bytes"));
  layer.input_bytes = Size(field.Get("input_bytes_per_sample"));
  layer.zero = ShortTime(field.Get("zero_gradients_s"));
  layer.check = ShortTime(field.Get("check_gradients_s"));
  for (const document::JsonField& item : field.Get("sizes").Items()) {
    layer.sizes.push_back(ReadSize(item));
    const size_t count = layer.sizes.size();
    if (count > 1 && layer.sizes[count - 1].samples <= layer.sizes[count - 2].samples) {
      item.Get("samples").Wrong("sizes must ascend");
    }
  }
  if (layer.sizes.empty()) field.Get("sizes").Wrong("must not be empty");
  return layer;
}

std::vector<LayerProfile> ReadLayers(const document::JsonField& field) {
  std::vector<LayerProfile> layers;
  for (const document::JsonField& item : field.Items()) layers.push_back(ReadLayer(item));
  if (layers.empty()) field.Wrong("must not be empty");
  return layers;
}

LinkProfile ReadLink(const document::JsonField& field) {
  field.Only({"latency_s", "alone_bytes_per_s", "duplex_bytes_per_s", "together_bytes_per_s"});
  return {ShortTime(field.Get("latency_s")), Rate(field.Get("alone_bytes_per_s")),
          Rate(field.Get("duplex_bytes_per_s")), Rate(field.Get("together_bytes_per_s"))};
}

void ReadLinks(const document::JsonField& field, DeviceProfile& device) {
  device.h2d = ReadLink(field.Get("h2d"));
  device.d2h = ReadLink(field.Get("d2h"));
  if (field.Has("p2p")) device.p2p = ReadLink(field.Get("p2p"));
}

DeviceProfile ReadDevice(const document::JsonField& field) {
  field.Only({"spec", "memory_bytes", "together", "h2d", "d2h", "p2p", "layers"});
  DeviceProfile device;
  device.spec = field.Get("spec").Text();
  const document::JsonField memory = field.Get("memory_bytes");
  device.memory = Size(memory);
  if (device.memory.count() == 0) memory.Wrong("a device needs memory, this one has 0 bytes");
  if (field.ok()) {
    const absl::StatusOr<std::vector<plan::DeviceSpec>> specs = plan::ParseDevices(device.spec);
    if (!specs.ok()) {
      field.Get("spec").Wrong(specs.status().message());
    } else if (specs->size() != 1 || specs->front().memory != device.memory) {
      memory.Wrong(
          absl::StrCat("is ", device.memory.count(), ", the device's spec says ", device.spec));
    }
  }
  device.together = Together(field.Get("together"));
  ReadLinks(field, device);
  device.layers = ReadLayers(field.Get("layers"));
  return device;
}

HostProfile ReadHost(const document::JsonField& field) {
  field.Only({"optimizer", "update_bytes_per_s", "norm_bytes_per_s", "batch_bytes_per_s",
              "initialize_bytes_per_s", "task_s", "wake_s"});
  HostProfile host;
  host.optimizer = field.Get("optimizer").Text();
  host.update_rate = Rate(field.Get("update_bytes_per_s"));
  host.norm_rate = Rate(field.Get("norm_bytes_per_s"));
  host.batch_rate = Rate(field.Get("batch_bytes_per_s"));
  host.initialize_rate = Rate(field.Get("initialize_bytes_per_s"));
  host.task = ShortTime(field.Get("task_s"));
  host.wake = ShortTime(field.Get("wake_s"));
  return host;
}

ProfileVersions ReadVersions(const document::JsonField& field) {
  field.Only({"harmony", "torch", "cpu_capability", "cpu", "cores"});
  ProfileVersions versions;
  versions.harmony = field.Get("harmony").Text();
  versions.torch = field.Get("torch").Text();
  versions.cpu_capability = field.Get("cpu_capability").Text();
  versions.cpu = field.Get("cpu").Text();
  versions.cores = static_cast<int>(field.Get("cores").Integer(1, 1 << 20));
  return versions;
}

void CheckSchema(const document::JsonField& root) {
  const document::JsonField field = root.Get("schema");
  const std::string schema = field.Text();
  if (schema != kProfileSchema) {
    field.Wrong(
        absl::StrCat("'", schema, "' is not known, this program reads '", kProfileSchema, "'"));
  }
}

const char* PartName(Part part) {
  static constexpr const char* kNames[] = {"versions", "layers", "together", "host", "links"};
  return kNames[static_cast<int>(part)];
}

}  // namespace

std::string ProfileToJson(const Profile& profile) {
  Json json;
  json["schema"] = kProfileSchema;
  json["model"] = {{"fingerprint", profile.model_fingerprint},
                   {"name", profile.model},
                   {"sequence_length", profile.sequence_length}};
  json["compute_threads"] = profile.compute_threads;
  json["quick"] = profile.quick;
  if (profile.calibrated) json["calibrated"] = true;
  if (profile.in_passing) json["in_passing"] = true;
  json["versions"] = ToJson(profile.versions);
  json["host"] = ToJson(profile.host);
  json["devices"] = Json::array();
  for (const DeviceProfile& device : profile.devices) {
    Json entry;
    entry["spec"] = device.spec;
    entry["memory_bytes"] = device.memory.count();
    entry["together"] = device.together;
    AddLinks(device, entry);
    entry["layers"] = LayersToJson(device.layers);
    json["devices"].push_back(std::move(entry));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Profile> ParseProfile(absl::string_view text, absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json json, document::ParseJsonFields(text, where));
  absl::Status status;
  const document::JsonField root(&json, where, &status);
  CheckSchema(root);
  HARMONY_RETURN_IF_ERROR(status);  // of another schema nothing else can be said
  root.Only({"schema", "model", "compute_threads", "quick", "calibrated", "in_passing", "versions",
             "host", "devices"});
  Profile profile;
  const document::JsonField model = root.Get("model");
  model.Only({"fingerprint", "name", "sequence_length"});
  profile.model_fingerprint = model.Get("fingerprint").Text();
  profile.model = model.Get("name").Text();
  profile.sequence_length = model.Get("sequence_length").Integer(1, limits::kMostTokens);
  profile.compute_threads = static_cast<int>(root.Get("compute_threads").Integer(1, 1024));
  profile.quick = root.Get("quick").Flag();
  if (root.Has("calibrated")) profile.calibrated = root.Get("calibrated").Flag();
  if (root.Has("in_passing")) profile.in_passing = root.Get("in_passing").Flag();
  profile.versions = ReadVersions(root.Get("versions"));
  profile.host = ReadHost(root.Get("host"));
  const document::JsonField devices = root.Get("devices");
  for (const document::JsonField& item : devices.Items())
    profile.devices.push_back(ReadDevice(item));
  if (profile.devices.empty()) devices.Wrong("must not be empty");
  for (size_t d = 0; profile.devices.size() > 1 && d < profile.devices.size(); ++d) {
    if (!profile.devices[d].p2p) devices.Items()[d].Get("p2p");
  }
  HARMONY_RETURN_IF_ERROR(status);
  return profile;
}

std::string ProfileRequestToJson(const ProfileRequest& request) {
  const Json json = {{"part", PartName(request.part)}, {"job", request.job_json},
                     {"config", request.config_json},  {"quick", request.quick},
                     {"layer", request.layer},         {"samples", request.samples},
                     {"output", request.output}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<ProfileRequest> ParseProfileRequest(absl::string_view text,
                                                   absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json json, document::ParseJsonFields(text, where));
  absl::Status status;
  const document::JsonField root(&json, where, &status);
  root.Only({"part", "job", "config", "quick", "layer", "samples", "output"});
  ProfileRequest request;
  const std::string part = root.Get("part").Text();
  bool known = false;
  for (Part each : {Part::kVersions, Part::kLayers, Part::kTogether, Part::kHost, Part::kLinks}) {
    if (part != PartName(each)) continue;
    request.part = each;
    known = true;
  }
  if (!known) root.Get("part").Wrong(absl::StrCat("there is no part '", part, "'"));
  request.job_json = root.Get("job").Text();
  request.config_json = root.Get("config").Text();
  request.quick = root.Get("quick").Flag();
  request.layer = static_cast<int>(root.Get("layer").Integer(0, limits::kMostLayers));
  request.samples = root.Get("samples").Integer(0);
  request.output = root.Get("output").Text();
  HARMONY_RETURN_IF_ERROR(status);
  return request;
}

std::string ProfilePartToJson(Part part, const Profile& profile) {
  Json json;
  switch (part) {
    case Part::kVersions:
      json = ToJson(profile.versions);
      break;
    case Part::kLayers:
      json["layers"] = LayersToJson(profile.devices.at(0).layers);
      break;
    case Part::kTogether:
      json["together"] = profile.devices.at(0).together;
      break;
    case Part::kHost:
      json = ToJson(profile.host);
      break;
    case Part::kLinks:
      json["devices"] = Json::array();
      for (const DeviceProfile& device : profile.devices) {
        AddLinks(device, json["devices"].emplace_back());
      }
      break;
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ProfileFailureToJson(const absl::Status& status) {
  Json json;
  json["failure"] = {{"code", static_cast<int>(status.code())},
                     {"message", std::string(status.message())}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Profile> ParseProfilePart(Part part, absl::string_view text,
                                         absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json json, document::ParseJsonFields(text, where));
  absl::Status status;
  const document::JsonField root(&json, where, &status);
  if (root.Has("failure")) {
    const document::JsonField failure = root.Get("failure");
    const int64_t code = failure.Get("code").Integer(1);
    return absl::Status(static_cast<absl::StatusCode>(code), failure.Get("message").Text());
  }
  Profile profile;
  switch (part) {
    case Part::kVersions:
      profile.versions = ReadVersions(root);
      break;
    case Part::kLayers:
      profile.devices.emplace_back().layers = ReadLayers(root.Get("layers"));
      break;
    case Part::kTogether:
      profile.devices.emplace_back().together = root.Get("together").Positive();
      break;
    case Part::kHost:
      profile.host = ReadHost(root);
      break;
    case Part::kLinks:
      for (const document::JsonField& item : root.Get("devices").Items()) {
        ReadLinks(item, profile.devices.emplace_back());
      }
      break;
  }
  HARMONY_RETURN_IF_ERROR(status);
  return profile;
}

}  // namespace harmony::profile
