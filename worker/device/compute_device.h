#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/units.h"
#include "worker/device/device_tensor.h"
#include "worker/kernels/row_kernels.h"

namespace harmony::worker {

// Memory taken from a device's workspace; destroying it gives the memory back.
class WorkspaceBlock {
 public:
  virtual ~WorkspaceBlock() = default;
  DeviceAddress address() const { return address_; }

 protected:
  explicit WorkspaceBlock(DeviceAddress address) : address_(address) {}

 private:
  DeviceAddress address_;
};

// Whose code computes in a device's memory, and which of several alike devices it is there.
struct LayerTarget {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
};

// The memory of one device while a job runs on it, and the operations on it that need no layer. The
// memory has two parts: the resident one, in which the dispatcher places what tasks are bound to,
// and the workspace, from which a task takes its temporaries and which it leaves empty.
//
// Work may be queued: what Zero, Convert, Add, CheckFinite and the layers start has happened, in
// the order in which it was started, when Synchronize returns. On the CPU everything happens at
// once.
//
// The compute lane's thread calls all but `usage`, which any thread may call.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  virtual LayerTarget target() const = 0;

  // Where the resident part begins.
  virtual DeviceAddress resident() const = 0;

  // Readies the calling thread for work on this device, before each task: the number of compute
  // threads or the current context are state of a thread. Cheap when nothing changed.
  virtual void PrepareThread() = 0;

  // At least `size` bytes, at a multiple of kSlotAlignment. ResourceExhausted names the sizes.
  virtual absl::StatusOr<std::unique_ptr<WorkspaceBlock>> Allocate(Bytes size) = 0;

  virtual void Zero(DeviceAddress address, Bytes size) = 0;

  // Moves numbers within the device's memory, to a place that begins at theirs or before it: they
  // may replace themselves. To the same type, or from fp32 to bf16, rounded to the nearest, ties to
  // even. REQUIRES: as many elements in both.
  virtual void Convert(const DeviceTensor& from, const DeviceTensor& to) = 0;

  // Adds fp32 numbers to others, each rounded to `type` (fp32, or bf16, to the nearest, ties to
  // even) before it is added. REQUIRES: as many elements in both, which do not overlap.
  virtual void Add(const DeviceTensor& from, const DeviceTensor& to, DType type) = 0;

  // Looks for a value that is infinite or not a number in a tensor of floating-point numbers. The
  // answer comes from Synchronize, under the caller's `tag` (from 0 on).
  virtual void CheckFinite(const DeviceTensor& tensor, int tag) = 0;

  // Loops over rows in this device's memory, for layers.
  virtual const RowKernels& row_kernels() const = 0;

  // Waits for all that was started. The tag of the first check since the last Synchronize that
  // found something, -1 when there is none; an error when queued work failed.
  virtual absl::StatusOr<int> Synchronize() = 0;

  // Between the host's memory and the device's, done on return, after what was started before. For
  // the little that a layer's host code reads and writes itself (ids to check, a loss); profiles
  // and tests fill and read tensors by these, too. A task's data come and go by the swapper.
  virtual absl::Status Write(DeviceAddress to, absl::Span<const std::byte> from) = 0;
  virtual absl::Status Read(DeviceAddress from, absl::Span<std::byte> to) = 0;

  // How long it has to compute without a pause until it is as slow as it stays in a long run: what
  // was idle has heat and power to spare, and clocks that fall. Zero where that makes no
  // difference.
  virtual Nanos warm_up() const { return Nanos(); }

  struct Usage {
    Bytes current;  // of the workspace
    Bytes peak;     // the most since the device was made
  };
  virtual Usage usage() const = 0;
};

}  // namespace harmony::worker
