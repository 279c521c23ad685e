#pragma once

// Tensors in the memory of one device, as everything above a layer's own code sees them: a place, a
// type and a shape. Nothing here says how the memory is reached.

#include <cstdint>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"

namespace harmony::worker {

// A place in one device's memory, in that device's own addressing: an address of this process on
// the CPU, a CUdeviceptr on CUDA. Only the code of that device reads the value; others keep it, add
// to it and hand it on.
class DeviceAddress {
 public:
  constexpr DeviceAddress() = default;  // nowhere
  constexpr explicit DeviceAddress(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }

  constexpr explicit operator bool() const { return value_ != 0; }
  constexpr bool operator==(const DeviceAddress&) const = default;
  constexpr DeviceAddress operator+(Bytes offset) const {
    return DeviceAddress(value_ + static_cast<uint64_t>(offset.count()));
  }

 private:
  uint64_t value_ = 0;
};

// Contiguous and row-major. Owns nothing.
struct DeviceTensor {
  DeviceAddress address;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of one with a part for each sample: [samples, ...]

  int64_t elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
};

}  // namespace harmony::worker
