#pragma once

// What a job takes with each of the systems that people use today, on the devices that are given:
// their schedules under a virtual clock, each with what a user would tune tuned for it. PURE.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

struct Baseline {
  std::string name;
  Schedule schedule = nullptr;
  const char* remark = "";    // what a reader must know beside the figures
  bool data_parallel = true;  // each device has its share of the batch
  // What is tried, in this order; the fastest counts.
  std::vector<Recompute> recompute = {Recompute::kNothing, Recompute::kLayers};
  std::vector<GradientPolicy> gradients = {GradientPolicy::kVirtual};
  std::vector<bool> reshards_after_forward = {true};
  bool replicates_stages = false;
  bool may_write_back_ahead = false;
  int lookahead = 3;  // of virtualised memory; IBM's TFLMS calls it swapin_ahead
  // Device memory that nothing else takes is a cache of weights.
  bool caches_weights = false;
  // At the best setting of a microbatch size these are tried as well: some quarters of the layers
  // recompute and the others do not; each device keeps its share of the weights.
  bool may_recompute_some = false, may_keep_shares = false;

  bool updates_on_host() const { return gradients.front() != GradientPolicy::kVirtual; }
};
const std::vector<Baseline>& AllBaselines();

// Why a system does not train the job on these devices.
enum class Obstacle {
  kNone,
  kBatch,         // it does not divide
  kDeviceMemory,  // a task's tensors, and what may not leave the device, do not fit
  kHostMemory,
};
const char* ToString(Obstacle obstacle);

struct Outcome {
  std::string name, remark;
  Obstacle obstacle = Obstacle::kNone;
  std::string reason;  // a sentence; where there is an obstacle
  Bytes missing;       // of memory
  int64_t microbatch_size = 0;
  Recompute recompute = Recompute::kNothing;
  Nanos step;
  // Per step over the links to the host, by Traffic; and device to device.
  std::array<int64_t, kTrafficClasses> bytes{};
  int64_t host_link_bytes = 0, peer_bytes = 0;
  Bytes device_peak;  // of the device that needs most
  Bytes host_peak;
  std::string binds;  // what is busiest, and its share of the step
  double busiest_share = 0;

  bool fits() const { return obstacle == Obstacle::kNone; }
};

// One setting, whatever its outcome. `microbatches`: as Setting has them. Steps of very many tasks
// are looked at with fewer microbatches and then made longer at the rate of the last ones.
Outcome Simulate(const Baseline& baseline, const LayerCosts& costs, const Setting& setting);

// The best setting that fits, over microbatch sizes (the job's, or where it leaves that open those
// that divide a device's share of the batch) and all that the baseline lists (with write-backs
// ahead of need; the best setting once more without); where none fits, the one that lacks least, of
// the host's memory if any fits the devices.
Outcome Best(const Baseline& baseline, const model::ModelSpec& model, const job::JobSpec& job,
             const plan::MachineSpec& machine, const dispatch::CostFactory& costs);

// What of a machine is busiest, in words: "link from the host of devices 0-3: 97%". `busy`: of a
// step, by LaneTable index.
struct Busiest {
  std::string text;
  double share = 0;
};
Busiest BusiestOf(const plan::LaneResources& resources, const std::vector<Nanos>& busy,
                  int num_devices, Nanos step);

}  // namespace harmony::baselines
