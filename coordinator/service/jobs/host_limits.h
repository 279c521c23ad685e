#pragma once

// What the machine has room for, held against what a job takes.

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/units.h"
#include "common/model/model_spec.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace harmony::service {

struct HostLimits {
  Bytes arena;                   // of the segment
  Bytes available;               // memory that may still be taken; 0: not checked
  bool devices_touched = false;  // memory of sim devices may have been taken already
  int64_t records = 0;           // 0: not checked
  int64_t cursors = 0;           // 0: not checked
};

// What the memory that may still be taken leaves for the arena: that of sim devices is host memory,
// too.
Bytes AvailableToArena(const plan::MachineSpec& machine, const HostLimits& limits);

// Whether the host has what the plan takes. InvalidArgument says how much is missing.
absl::Status CheckHost(const model::ModelSpec& model, const plan::Plan& plan,
                       const plan::MachineSpec& machine, const HostLimits& limits);

}  // namespace harmony::service
