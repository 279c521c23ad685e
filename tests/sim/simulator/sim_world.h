#pragma once

// The segment and the devices of a simulated machine, and what commands do to them: they check all
// they read, leave what they write torn while they run, and commit when they complete. PURE.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/command/command.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "tests/sim/simulator/shadow_memory.h"

namespace harmony::sim {

// The sum of microbatches `first` to `end` - 1.
inline Tag Gradient(int reference, int first, int end, int64_t step) {
  return {Content::kGradient, reference, end, step, first};
}

// Ids of running commands are unique per lane and generation only; devices are cleared between
// generations, and so are uses.
inline uint64_t UserOf(const command::Command& command) { return command.header.id; }

class SimWorld {
 public:
  SimWorld(const model::ModelSpec& model, const plan::Plan& plan, int64_t first_step);

  // The command's waits are satisfied and it starts. Internal: an invariant is broken.
  absl::Status Start(const command::Command& command);
  // And a buffer of its gradients, for which it waited, is free: number in ComputeTask::gradients.
  absl::Status StartGradient(const command::Command& command, size_t gradient);
  // It has completed: content and records are in place.
  absl::Status Complete(const command::Command& command);
  // Its process died, or its result is thrown away.
  void Abort(const command::Command& command);
  // A new generation: nothing on a device is valid any more.
  void ForgetDevices();

  const std::vector<command::ObjectView>& records() const { return records_; }
  // Bytes moved over CPU-GPU links by completed copies, by TrafficClass.
  const std::array<int64_t, 8>& moved_bytes() const { return moved_; }
  int64_t saved_version() const { return saved_version_; }
  // What is left of the step under way, and of the next, can be derived from what is committed.
  absl::Status CheckDerivable() const;
  // Every parameter has exactly `version` updates in it.
  absl::Status CheckFinal(int64_t version) const;

 private:
  absl::Status StartCompute(uint64_t id, const command::ComputeTask& task, int64_t step,
                            int device);
  absl::Status CompleteCompute(const command::ComputeTask& task, int64_t step, int device);
  absl::Status StartCopy(uint64_t id, const command::Transfer& copy);
  absl::Status CompleteCopy(const command::Transfer& copy);
  absl::Status StartHost(uint64_t id, const command::HostTask& task, int64_t step);
  absl::Status CompleteHost(const command::HostTask& task, int64_t step);
  absl::Status CheckGradients(const command::HostTask& task, int64_t step) const;
  absl::Status CheckLosses(int64_t step) const;
  absl::Status ReadLoss(int device, Bytes offset, int part, int64_t step) const;
  // The buffers of one gradient that a task writes, its own and those that wait, each with the
  // microbatches that are in it before.
  absl::Status StartOwnSum(uint64_t id, const command::ComputeTask& task,
                           const command::WeightBinding& gradient, int64_t step,
                           ShadowMemory& memory) const;
  absl::Status StartAddition(uint64_t id, const command::ComputeTask& task,
                             const command::WeightBinding& gradient, int64_t step,
                             ShadowMemory& memory) const;
  int FirstOfSum(const command::ComputeTask& task) const;
  absl::Status CheckPart(const command::ComputeTask& task) const;
  // A part of a reference's gradient.
  Tag PartOf(int reference, int part, int64_t step) const {
    const int layer = model_.references[reference].layer;
    const int each = plan_.part_microbatches(plan::BackwardGroupOf(plan_, layer));
    return Gradient(reference, part * each, (part + 1) * each, step);
  }
  ShadowMemory& MemoryOf(const command::Endpoint& end) {
    return end.device < 0 ? arena_ : devices_[end.device];
  }
  command::ObjectView& Record(const command::ObjectKey& key) {
    return records_[table_.IndexOf(key)];
  }
  absl::Status ExpectClean(const command::ObjectKey& key, int64_t version) const;
  void SetBlock(int block, uint64_t version, command::ObjectState state);
  int MicrobatchesOf(const command::ComputeTask& task) const {
    return static_cast<int>(task.samples / plan_.microbatch_size);
  }
  // Of one microbatch.
  Bytes BoundarySize(int boundary) const {
    return model::BoundaryBytes(model_, boundary, plan_.microbatch_size);
  }
  Bytes BoundaryGradientSize(int boundary) const {
    return model::BoundaryGradientBytes(model_, boundary, plan_.microbatch_size);
  }
  Bytes KeptBytes(const command::ComputeTask& task) const {
    return model::KeptActivationBytes(model_, task.layers, task.samples);
  }
  Bytes WeightSize(int reference) const {
    return model_.blocks[model_.references[reference].block].weight_bytes;
  }
  // Of a gradient while microbatches are added up.
  Bytes AccumulatorSize(int reference) const {
    return model_.blocks[model_.references[reference].block].accumulator_bytes;
  }
  // And as it leaves the device.
  Bytes GradientSize(int reference) const {
    return model_.blocks[model_.references[reference].block].gradient_bytes;
  }

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  int64_t first_step_;
  plan::ArenaLayout layout_;
  command::ObjectTableLayout table_;
  command::LaneTable lanes_;
  ShadowMemory arena_;
  std::vector<ShadowMemory> devices_;
  std::vector<command::ObjectView> records_;
  std::array<int64_t, 8> moved_{};
  int64_t saved_version_ = -1;
  std::vector<absl::InlinedVector<ShadowMemory::Object, 1>> in_flight_;  // by lane: its copy's
};

}  // namespace harmony::sim
