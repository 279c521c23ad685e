#include "client/launcher/cluster.h"

#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/launcher/host_memory.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/nearest_name.h"
#include "common/document/yaml_document.h"
#include "common/io/file.h"

namespace harmony::client {
namespace {

struct ConfigFile {
  std::string devices, host_memory;
};

absl::StatusOr<std::string> DevicesOf(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::vector<std::string> all;
  for (const YAML::Node& one : node) {
    if (!node.IsSequence() || !one.IsScalar()) break;
    all.push_back(one.Scalar());
  }
  if (all.empty() || all.size() != node.size()) {
    return absl::InvalidArgumentError("devices: a device string or a list of them is expected");
  }
  return absl::StrJoin(all, ";");
}

absl::StatusOr<ConfigFile> ReadNode(const YAML::Node& root) {
  ConfigFile config;
  if (root.IsNull()) return config;
  if (!root.IsMap()) return absl::InvalidArgumentError("keys and values are expected");
  std::set<std::string> seen;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) return absl::InvalidArgumentError("a key must be a plain text");
    std::string key = entry.first.Scalar();
    if (!seen.insert(key).second) {
      return absl::InvalidArgumentError(absl::StrCat("the key '", key, "' is given twice"));
    }
    if (key == "devices") {
      HARMONY_ASSIGN_OR_RETURN(config.devices, DevicesOf(entry.second));
    } else if (key == "host_memory") {
      config.host_memory = entry.second.IsScalar() ? entry.second.Scalar() : "?";
    } else {
      return absl::InvalidArgumentError(
          document::UnknownName("key", key, {"devices", "host_memory"}));
    }
  }
  return config;
}

absl::StatusOr<ConfigFile> ReadConfig(const std::string& path) {
  absl::StatusOr<std::string> text = io::ReadWholeFile(path, limits::kMostFileBytes);
  if (!text.ok()) return WithContext(text.status(), "--config");
  HARMONY_ASSIGN_OR_RETURN(const YAML::Node root, document::ParseYaml(*text, path));
  absl::StatusOr<ConfigFile> config = ReadNode(root);
  if (!config.ok()) return WithContext(config.status(), path);
  return config;
}

// Where nobody names any: all GPUs that can be used, else one that is emulated.
absl::Status FindDevices(Bytes available, const GpuSource& gpus, Cluster& cluster) {
  const absl::StatusOr<std::vector<plan::Gpu>> found = gpus();
  cluster.default_devices = true;
  cluster.why_no_gpus = WhyNone(found);
  if (!cluster.why_no_gpus.empty()) {
    cluster.devices = DefaultDevices(available);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> named = plan::NameGpus("cuda", *found);
  if (named.ok()) {
    cluster.devices = *std::move(named);
    return absl::OkStatus();
  }
  return absl::Status(
      named.status().code(),
      absl::StrCat(named.status().message(), "; --devices takes some of the GPUs, or ",
                   DefaultDevices(available), " to train on the CPU"));
}

}  // namespace

std::string WhyNone(const absl::StatusOr<std::vector<plan::Gpu>>& found) {
  if (!found.ok()) return std::string(found.status().message());
  std::string why = found->empty() ? "there is no GPU" : "";
  for (const plan::Gpu& gpu : *found) {
    if (gpu.problem.empty()) return "";
    absl::StrAppend(&why, why.empty() ? "" : "; ", "cuda:", gpu.ordinal, ": ", gpu.problem);
  }
  return why;
}

absl::StatusOr<Cluster> ResolveCluster(const std::string& config_path, const std::string& devices,
                                       const std::string& host_memory, Bytes available,
                                       const GpuSource& gpus) {
  ConfigFile config;
  if (!config_path.empty()) {
    HARMONY_ASSIGN_OR_RETURN(config, ReadConfig(config_path));
  }
  Cluster cluster;
  cluster.devices = devices.empty() ? config.devices : devices;
  if (cluster.devices.empty()) {
    HARMONY_RETURN_IF_ERROR(FindDevices(available, gpus, cluster));
  } else if (plan::NeedsGpus(cluster.devices)) {
    HARMONY_ASSIGN_OR_RETURN(const std::vector<plan::Gpu> found, gpus());
    HARMONY_ASSIGN_OR_RETURN(cluster.devices, plan::NameGpus(cluster.devices, found));
  }
  HARMONY_ASSIGN_OR_RETURN(cluster.specs, plan::ParseDevices(cluster.devices));

  Bytes sim_memory;
  for (const plan::DeviceSpec& spec : cluster.specs) {
    if (spec.kind == plan::DeviceKind::kSim) sim_memory += spec.memory;
  }
  std::string size = host_memory.empty() ? config.host_memory : host_memory;
  if (size.empty()) {
    cluster.host_memory = DefaultHostSegment(available, sim_memory);
  } else {
    absl::StatusOr<Bytes> parsed = ParseBytes(size);
    if (!parsed.ok()) return WithContext(parsed.status(), "host_memory");
    if (*parsed < MiB(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("host_memory: ", size, " is too little: give 1MiB at least"));
    }
    if (parsed->count() > limits::kMostBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "host_memory: ", size, " is too much: at most ", FormatBytes(Bytes(limits::kMostBytes))));
    }
    cluster.host_memory = *parsed;
  }
  return cluster;
}

}  // namespace harmony::client
