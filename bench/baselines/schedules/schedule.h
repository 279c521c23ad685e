#pragma once

// What people do today, as schedules: each adds the tasks of some training steps to the devices of
// a simulation. One file each, with its rules and where they come from at its head. PURE.

#include <deque>

#include "bench/baselines/engine/device_program.h"

namespace harmony::baselines {

// What a user of a system tunes, and how much is simulated.
struct Setting {
  Recompute recompute = Recompute::kLayers;
  int recomputed_quarters = 4;  // DevicePolicy's
  // Of systems whose optimizer is on the host.
  GradientPolicy gradients = GradientPolicy::kLeaveOnce;
  int stages = 0;                      // of a pipeline that replicates them; 0: as many as devices
  bool reshards_after_forward = true;  // fsdp-offload: weights are loaded again for the backward
  bool weights_on_host = true;  // zero-infinity, super-offload: else each device keeps its share
  int microbatches = 1;         // of a step; data parallel: of each device
  int steps = 3;
  Paging paging = {};  // of virtualised memory
};

struct Simulation {
  // `to`: where what is decided is recorded, which outlives this; null: nowhere.
  explicit Simulation(const LayerCosts& of, Recording* to = nullptr)
      : costs(of), timeline(of.num_devices(), of.resources()), recording(to) {}

  DeviceProgram& AddDevice(model::LayerRange layers, const DevicePolicy& policy) {
    return devices.emplace_back(costs, static_cast<int>(devices.size()), layers, policy, &timeline,
                                recording);
  }
  model::LayerRange all_layers() const { return {0, costs.num_layers() - 1}; }

  const LayerCosts& costs;
  Timeline timeline;
  Recording* const recording;
  std::deque<DeviceProgram> devices;
  Bytes host;  // what lies in host memory besides what devices evict
};

using Schedule = void (*)(const Setting& setting, Simulation* simulation);

void DpSwap(const Setting& setting, Simulation* simulation);
void GpipeSwap(const Setting& setting, Simulation* simulation);
void OneForwardOneBackwardSwap(const Setting& setting, Simulation* simulation);
void OneForwardOneBackwardFlushSwap(const Setting& setting, Simulation* simulation);
void ZeroOffload(const Setting& setting, Simulation* simulation);
void ZeroOffloadDelayed(const Setting& setting, Simulation* simulation);
void ZeroInfinity(const Setting& setting, Simulation* simulation);
void SuperOffload(const Setting& setting, Simulation* simulation);
void FsdpOffload(const Setting& setting, Simulation* simulation);

// ---- What several of them share ----

// Forward and backward of a step's microbatches on all devices, each with all layers.
// `after_layer`: called when the last microbatch's backward of a layer has been added for all
// devices, with these operations.
void DataParallelStep(const Setting& setting, int step, Simulation* simulation,
                      void (*after_layer)(int layer, const std::vector<Operation>& backward,
                                          Simulation* simulation));

// When the host updates, and what works with that.
enum class HostUpdate {
  kAfterBackward,  // after all gradients of the step, for the optimizer's step is called when the
                   // backward has ended
  kDelayed,        // then, too; what it makes is used a step later
  kInBackward,     // each block as soon as its gradient is there, unless the job clips gradients by
                   // their norm, which all of them have to be there for
};

// All steps of a data-parallel system whose optimizer runs on the host, which has weights, master
// weights, moments and gradients, divided among as many shards as there are devices. Of `policy`,
// what the setting says is filled in.
void RunWithHostOptimizer(const Setting& setting, DevicePolicy policy, HostUpdate update,
                          Simulation* simulation);

// A stage of a pipeline: its layers, on devices that take its microbatches in turn.
struct Stage {
  model::LayerRange layers;
  int first_device = 0, replicas = 1;
};
struct Cut {
  int stages = 0;    // fewer where there are fewer layers; 0: as many as there are devices
  int replicas = 1;  // of a stage at most; as far as there are devices
  Recompute recompute = Recompute::kNothing;
  bool last_keeps = false;  // of stages that are recomputed the last one is not
};
// Cuts the layers into stages so that a microbatch takes the longest one least time, forward and
// backward, over the number of its replicas.
std::vector<Stage> BalancedStages(const LayerCosts& costs, const Cut& cut);
// No step is shorter, for what a device computes in it.
Nanos LeastComputing(const LayerCosts& costs, const Setting& setting, bool data_parallel);

// Each device runs its own list of tasks, in order.
struct StageTask {
  bool forward = true;
  int step = 0;
  int microbatch = 0;  // of the step
};
using DeviceOrder = std::vector<StageTask>;
// The stages of a pipeline, with what they send each other; `orders` by device. Where stages are
// recomputed, a microbatch whose backward is its device's next task is not: nothing would be saved.
// Gradients of blocks that several devices have are reduced when all have added theirs.
void RunPipeline(const std::vector<Stage>& stages, const std::vector<DeviceOrder>& orders,
                 int microbatches, int weight_versions, Simulation* simulation);

}  // namespace harmony::baselines
