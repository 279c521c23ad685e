#pragma once

// Measures the layers of a model on one device: builds the same compute tasks that training issues
// and has the same DeviceWorker run them, in its capped memory, paced if the device is.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/checkpoint_reader.h"
#include "common/profile/profile.h"
#include "common/runtime/profile_call.h"
#include "worker/service/device_worker.h"

namespace harmony::worker {

// One thread. Leaves what it likes in the device's memory.
class LayerProfiler {
 public:
  static absl::StatusOr<LayerProfiler> Create(const plan::DeviceSpec& device,
                                              std::unique_ptr<DeviceBackend> backend,
                                              const runtime::ProfileCall& call);

  // Every distinct layer, over the sizes that fit and take no longer than about a second.
  // ResourceExhausted names a layer that fits at no size.
  absl::StatusOr<std::vector<profile::LayerProfile>> MeasureAll();

  // Makes the backward of one layer (of the head: the fused task) ready for RunOnce, which runs the
  // layer's forward before it where that is wanted.
  absl::Status PrepareLayer(int layer, int64_t samples, bool with_forward);
  absl::Status RunOnce();
  // Times work of the device, which was made ready for it, after its warm-up.
  absl::StatusOr<profile::Measured> Repeat(runtime::RepeatLimits limits,
                                           const std::function<absl::Status()>& work);

 private:
  struct Task {
    command::TaskKind kind;
    model::LayerRange layers;
    int64_t samples;
    bool kept = false;          // with what a forward kept
    bool with_forward = false;  // a backward before which RunOnce runs the forward
  };
  struct Timing {
    profile::Measured seconds;
    Bytes workspace;  // peak
  };
  class Binder;

  LayerProfiler(const plan::DeviceSpec& device, std::unique_ptr<DeviceWorker> worker,
                const runtime::ProfileCall& call);

  absl::Status Prepare(const Task& task);
  absl::StatusOr<Timing> Time(const Task& task);
  absl::StatusOr<profile::LayerProfile> MeasureShape(const profile::LayerShape& shape);
  absl::StatusOr<profile::LayerSizeProfile> MeasureSize(const profile::LayerShape& shape,
                                                        int64_t samples,
                                                        const profile::LayerSizeProfile* smaller);
  // The part of a size that needs a group of two layers.
  absl::Status MeasureInner(const profile::LayerShape& shape,
                            const profile::LayerSizeProfile* smaller,
                            profile::LayerSizeProfile& size);
  // A block's forward that keeps what it computes, and the backward by that.
  absl::Status MeasureKept(model::LayerRange block, profile::LayerSizeProfile& size);
  absl::Status MeasureGradients(profile::LayerProfile& layer);

  plan::DeviceSpec device_;
  std::unique_ptr<DeviceWorker> worker_;
  runtime::AttachedJob job_;
  std::optional<io::CheckpointReader> weights_;  // of an exported model's directory
  runtime::RepeatLimits limits_;
  std::vector<int64_t> sizes_;
  command::Command command_;  // as prepared
  std::optional<command::Command> forward_;
  bool is_quick_ = false;
  bool is_warm_ = false;  // the device was busy for its whole warm-up
};

}  // namespace harmony::worker
