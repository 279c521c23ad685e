#pragma once

// Copies that never pause: each direction has its stream and always some copies in flight, as a
// lane of the swapper has while a step runs.

#include <cuda.h>

#include <cstdint>
#include <functional>

namespace harmony::bench {

// Half of the memory is for copies to the device, the other for those from it.
struct Copies {
  CUstream to_device = nullptr;
  CUstream from_device = nullptr;
  CUdeviceptr device = 0;
  char* host = nullptr;
  uint64_t half = 0;
};

enum Directions { kToDevice = 1, kFromDevice = 2, kBoth = 3 };

// Bytes per second / 10^9, each by the device's own clock; 0 where too few copies ended to tell.
struct Rates {
  double to_device = 0;
  double from_device = 0;
};

struct PumpPlan {
  uint64_t chunk = 0;  // divides the pins, so that no copy spans two
  Directions directions = kBoth;
  int depth = 0;  // copies in flight in each direction; 0: as many as 64 MiB, 4 to 32
  double warm_up_seconds = 0.03;
};

// Copies until `stop` says so, then waits for what is in flight. The rates are those between the
// first copy that ends after the warm-up and the last before `stop`, while all lanes are busy.
Rates Pump(const Copies& copies, const PumpPlan& plan, const std::function<bool()>& stop);
Rates PumpFor(const Copies& copies, const PumpPlan& plan, double seconds);

}  // namespace harmony::bench
