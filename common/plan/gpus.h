#pragma once

// The GPUs of this machine, as harmony-cuda finds them, and the device strings that they make.
// PURE.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"
#include "common/plan/machine.h"

namespace harmony::plan {

struct Gpu {
  int ordinal = 0;
  std::string name, uuid, bus;
  int multiprocessors = 0;
  int capability = 0;        // of compute: 90 is 9.0
  Bytes memory;              // in all
  Bytes free;                // before Harmony takes any
  Bytes context;             // what a process takes of it by using it at all
  std::string problem = {};  // why it cannot be used; empty: it can
  bool operator==(const Gpu&) const = default;
};

std::string GpusToJson(const std::vector<Gpu>& gpus);
absl::StatusOr<std::vector<Gpu>> GpusFromJson(absl::string_view json);

// Whether GPUs have to be looked for before these devices can be parsed: all of them are meant
// ("cuda"), or one whose memory is not given.
bool NeedsGpus(absl::string_view devices);

// The same devices, "cuda" replaced by all GPUs that can be used, and with the memory of each.
// Where none is given it is what is free, less a little and less the contexts of the processes that
// will use it, shared by the devices that are the same GPU. InvalidArgument names a GPU that is not
// there, or has less memory free than what is given, with the numbers.
absl::StatusOr<std::string> NameGpus(absl::string_view devices, const std::vector<Gpu>& gpus);

// Whether the GPUs have room for such devices and the processes that use them; errors as above.
absl::Status CheckGpus(std::vector<DeviceSpec> devices, const std::vector<Gpu>& gpus);

}  // namespace harmony::plan
