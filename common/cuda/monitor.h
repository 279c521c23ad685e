#pragma once

// What a GPU says of itself while it works, by the management library that comes with NVIDIA's
// driver (NVML, libnvidia-ml.so.1). It is opened at run time and needs no context.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/cuda/driver.h"

namespace harmony::cuda {

// Of the whole GPU, whoever uses it. Each is there where the GPU and the library tell it.
struct Readings {
  std::optional<int> temperature_celsius;
  std::optional<int> sm_clock_mhz, memory_clock_mhz;
  std::optional<Bytes> memory_used, memory;
  std::optional<BytesPerSecond> pcie_in, pcie_out;  // into the GPU, and out of it
};

// One GPU. One thread at a time; monitors of several GPUs are independent.
class Monitor {
 public:
  // NotFound: there is no such library here, or it does not know the GPU; says which.
  static absl::StatusOr<std::unique_ptr<Monitor>> Open(const Driver& driver, int ordinal);
  virtual ~Monitor() = default;

  // Takes some 40 ms: the library watches the link for half of that in each direction.
  virtual Readings Read() const = 0;
};

}  // namespace harmony::cuda
