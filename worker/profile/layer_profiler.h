#pragma once

// Measures the layers of a model on one device: builds the same compute tasks that training issues
// and has the same DeviceWorker run them, in its capped memory, paced if the device is.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/plan/profile.h"
#include "common/runtime/profile_call.h"
#include "worker/service/device_worker.h"

namespace harmony {

// One thread. Leaves what it likes in the device's memory.
class LayerProfiler {
 public:
  // `region` is the whole memory of the device.
  static absl::StatusOr<LayerProfiler> Create(const DeviceSpec& device, MappedRegion region,
                                              const ProfileCall& call);

  // Every distinct layer, over the sizes that fit and take no longer than about a second.
  // ResourceExhausted names a layer that fits at no size.
  absl::StatusOr<std::vector<LayerProfile>> MeasureAll();

  // Makes the backward of one layer (of the head: the fused task) ready to be run by RunOnce.
  absl::Status PrepareBackward(int layer, int64_t samples);
  absl::Status RunOnce();

 private:
  struct Task {
    TaskKind kind;
    LayerRange layers;
    int64_t samples;
    bool kept = false;  // with what a forward kept
  };
  struct Timing {
    Measured seconds;
    Bytes workspace;  // peak
  };
  class Binder;

  LayerProfiler(const DeviceSpec& device, std::unique_ptr<DeviceWorker> worker,
                const ProfileCall& call);

  absl::Status Prepare(const Task& task);
  absl::StatusOr<Timing> Time(const Task& task);
  absl::StatusOr<LayerProfile> MeasureShape(const LayerShape& shape);
  absl::StatusOr<LayerSizeProfile> MeasureSize(const LayerShape& shape, int64_t samples,
                                               const LayerSizeProfile* smaller);
  // The part of a size that needs a group of two layers.
  absl::Status MeasureInner(const LayerShape& shape, const LayerSizeProfile* smaller,
                            LayerSizeProfile& size);
  // A block's forward that keeps what it computes, and the backward by that.
  absl::Status MeasureKept(LayerRange block, LayerSizeProfile& size);
  absl::Status MeasureGradients(LayerProfile& layer);

  DeviceSpec device_;
  std::unique_ptr<DeviceWorker> worker_;
  AttachedJob job_;
  RepeatLimits limits_;
  std::vector<int64_t> sizes_;
  Command command_;  // as prepared
};

}  // namespace harmony
