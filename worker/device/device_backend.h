#pragma once

// A device as a worker process has it, whatever job runs on it.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "worker/device/compute_device.h"

namespace harmony::worker {

// The service's thread calls; devices are used as ComputeDevice says.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // Of the whole device.
  virtual Bytes memory() const = 0;

  // What fixes the bits of what is computed there, besides the job: the model of the processor or
  // GPU, and the versions of what it computes with. For people, and to be compared.
  virtual std::string ComputesOn() const = 0;

  // The device for one job: the first `resident` bytes of its memory are bound, the workspace has
  // its own size beside them. One at a time; the backend outlives it. ResourceExhausted: memory is
  // missing for the workspace.
  virtual absl::StatusOr<std::unique_ptr<ComputeDevice>> Open(Bytes resident, Bytes workspace,
                                                              int compute_threads) = 0;
};

}  // namespace harmony::worker
