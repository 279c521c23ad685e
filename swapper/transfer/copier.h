#pragma once

// How bytes get from one memory to another: what differs between kinds of devices. The engine above
// it (copy_engine.h) checks, commits and counts transfers, whatever carries them out.

#include "absl/status/status.h"
#include "common/base/units.h"
#include "common/plan/plan.h"
#include "swapper/core/slot_ledger.h"

namespace harmony::swapper {

// Between the arena and a device, or between two devices; within its memories, of one size.
struct Copy {
  int lane = 0;  // index of LaneTable
  SlotRange source, destination;
};

class Copier {
 public:
  virtual ~Copier() = default;

  // Of the whole device.
  virtual Bytes MemoryOf(int device) const = 0;

  // Whether bytes go from the one to the other without passing through the host.
  virtual bool ReachesPeer(int from, int to) const = 0;

  // Returns when the bytes have arrived. All lanes call it at once, each from a thread of its own.
  // Unavailable: the device or this process's use of it is lost.
  virtual absl::Status Run(const Copy& copy) = 0;

  // A job's arena is there, the first `extent` bytes of it: readies its memory and the devices' for
  // copies. Ends an earlier one. Both are called by the service's thread while no copy runs.
  virtual absl::Status BeginJob(const plan::Plan& plan, Bytes extent) = 0;
  // Afterwards the arena's pages may be given back. Unavailable as above: they may when this
  // process has ended.
  virtual absl::Status EndJob() = 0;
};

}  // namespace harmony::swapper
