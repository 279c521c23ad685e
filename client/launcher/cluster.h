#pragma once

// What `harmony up` is to start: devices and host memory, from CLUSTER.yaml and the command line.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/plan/gpus.h"
#include "common/plan/machine.h"

namespace harmony::client {

struct Cluster {
  std::string devices;  // as given, joined with ';'
  std::vector<plan::DeviceSpec> specs;
  Bytes host_memory;             // virtual size of the host segment
  bool default_devices = false;  // nobody named any
  std::string why_no_gpus;       // of default devices that are emulated
};

// Why none of the GPUs that were found can be used; empty: some can.
std::string WhyNone(const absl::StatusOr<std::vector<plan::Gpu>>& found);

// CLUSTER.yaml:
//   devices: "sim*4:mem=64MiB"      # or a list of such strings
//   host_memory: 12GiB
// What the command line gives (empty: nothing) wins. Where neither names devices, they are the GPUs
// that can be used, else one that is emulated. `gpus` is asked for that, and where devices mean
// GPUs of this machine without saying all of them. InvalidArgument names file, key and the nearest
// known key; NotFound when there is no such file; errors of `gpus`.
using GpuSource = std::function<absl::StatusOr<std::vector<plan::Gpu>>()>;
absl::StatusOr<Cluster> ResolveCluster(const std::string& config_path, const std::string& devices,
                                       const std::string& host_memory, Bytes available,
                                       const GpuSource& gpus);

}  // namespace harmony::client
