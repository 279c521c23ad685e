#pragma once

// Contexts, streams and events as values that free themselves.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace harmony::cuda {

// A context of this process on one GPU. Movable.
class Context {
 public:
  // Makes one and makes it current to the calling thread.
  static absl::StatusOr<Context> Create(const Driver& driver, int ordinal);
  // The one in which this process computes, also with libraries: there is one on each GPU.
  static absl::StatusOr<Context> Primary(const Driver& driver, int ordinal);
  Context(Context&& other) noexcept;
  Context& operator=(Context&&) = delete;
  // REQUIRES: nothing of it is in use.
  ~Context();

  // For each thread before its first call that works on the device.
  absl::Status MakeCurrent() const;

 private:
  Context(const Driver& driver, CUcontext context) : driver_(&driver), context_(context) {}

  const Driver* driver_;
  CUcontext context_;
  std::optional<CUdevice> retained_;  // whose primary one it is
};

// A queue of copies, one after the other, and the event by which the last of them is waited for.
// One thread at a time, to which the context is current.
class CopyQueue {
 public:
  static absl::StatusOr<CopyQueue> Create(const Driver& driver);
  CopyQueue(CopyQueue&& other) noexcept;
  CopyQueue& operator=(CopyQueue&&) = delete;
  ~CopyQueue();

  CUstream stream() const { return stream_; }
  // Blocks until all that was queued is done, by asking again and again: at first without a pause,
  // since a copy of a boundary tensor takes some ten microseconds; a sleep of the driver's would
  // cost as much again.
  absl::Status Finish();

 private:
  explicit CopyQueue(const Driver& driver) : driver_(&driver) {}

  const Driver* driver_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
};

}  // namespace harmony::cuda
