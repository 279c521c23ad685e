#pragma once

// The tasks of one device: forward and backward of its layers, one microbatch and layer at a time,
// with the tensors that they read and make. What distinguishes the systems is a policy; in which
// order the tasks run is the schedule's. PURE.

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "bench/baselines/engine/device_memory.h"

namespace harmony::baselines {

enum class WeightPolicy {
  kVirtual,   // tensors as others; the device updates them
  kResident,  // on the device all the time; the host updates them
  kStreamed,  // on the host; what is on the device is a cache of them; the host updates them
  kSharded,   // a share on each device; the whole is gathered and cached; the host updates them
  kDropped,   // on the host; each task that needs them brings them in, and drops them
  kGathered,  // on the host; a forward brings them in, and what they are last needed for drops them
};
enum class GradientPolicy {
  kVirtual,        // tensors as others, added up on the device
  kLeaveEachTime,  // each microbatch's go to the host, which adds them up (in no time)
  kLeaveOnce,      // added up on the device, its share of them; they leave after the last one
  kReduceOnce,     // added up on the device, all of them; reduced and gone after the last one
};

// What of a microbatch waits for its backward, and so what is computed once more before it.
enum class Recompute {
  kNothing,  // what autograd saves waits
  kLayers,   // each layer's input waits; a layer's backward has its forward in it
  kStage,    // the input of the device's first layer waits; all its layers run forward once more
};

const char* ToString(Recompute recompute);

struct DevicePolicy {
  WeightPolicy weights = WeightPolicy::kVirtual;
  GradientPolicy gradients = GradientPolicy::kVirtual;
  Recompute recompute = Recompute::kLayers;
  // Of kLayers: so many quarters of the device's layers, from the first on; what autograd saves of
  // the others waits.
  int recomputed_quarters = 4;
  // They may go to the host: what is made for other layers, and what autograd saves.
  bool evictable_activations = true, evictable_saved = true;
  Paging paging = {};
  int shards = 1;  // weights are gathered from, and gradients divided among, so many devices
  int weight_versions = 1;
};

class DeviceProgram {
 public:
  // All must outlive it; `recording`: see DeviceMemory.
  DeviceProgram(const LayerCosts& costs, int device, model::LayerRange layers,
                const DevicePolicy& policy, Timeline* timeline, Recording* recording = nullptr);

  // Of microbatch `id`, which is unique over all steps. REQUIRES: `layer` is one of the device's,
  // and not the model's last, whose forward is part of its backward. `arrival`: when the input of
  // the device's first layer is there, where another device makes it. `keeps`: where stages are
  // recomputed, this microbatch is not: what autograd saves waits.
  Operation Forward(int id, int layer, int version = 0, Operation arrival = kNoOperation,
                    bool keeps = false);
  // Where stages are recomputed and the microbatch needs it: its forward once more, of all layers.
  // Only the input of the device's first layer has to be there for it.
  void RecomputeStage(int id, int version = 0);
  // `first`, `last`: of the microbatches whose gradients are added up. `arrival`: of the gradient
  // of the device's last layer's output, where another device makes it.
  Operation Backward(int id, int layer, bool first, bool last, int version = 0,
                     Operation arrival = kNoOperation);

  // A layer's input or its gradient goes to another device when `made` has ended; its arrival.
  Operation Send(int boundary, Operation made);
  // The gradient of a block is exchanged with other devices, `moved` bytes a device.
  Operation Reduce(int block, Bytes moved, const std::vector<Operation>& after);
  // Virtual weights: the device updates a block in no time, all its tensors resident; version
  // `from` becomes version `to`.
  Operation Update(int block, int from = 0, int to = 0);
  // Other weights: the host has updated a block.
  void Updated(int block, Operation by);

  const model::LayerRange& layers() const { return layers_; }
  int device() const { return memory_.device(); }
  // Blocks that its layers refer to, ascending.
  const std::vector<int>& blocks() const { return blocks_; }
  bool uses(int block) const { return blocks_of_[static_cast<size_t>(block)].first_layer >= 0; }
  // The layer whose backward is the last to add to the gradient of a block.
  int CompletesGradient(int block) const {
    return blocks_of_[static_cast<size_t>(block)].first_layer;
  }
  // Gradients that leave: when a block's have, of the last microbatch so far.
  Operation GradientOut(int block) const {
    return blocks_of_[static_cast<size_t>(block)].gradient_out;
  }
  const DeviceMemory& memory() const { return memory_; }

 private:
  struct Block {
    int first_layer = -1;
    std::vector<Tensor> weights;  // by version
    Tensor gradient = -1, state = -1, share = -1;
    Operation gradient_out = kNoOperation;
  };
  // Of a microbatch, by layer; -1: there is none.
  struct Microbatch {
    std::vector<Tensor> input, input_gradient, saved, batch;
    bool kept = false;  // what autograd saves of it waits
  };
  struct Uses {
    int block;
    bool weights_in_backward;
  };
  std::vector<Uses> UsesOf(int layer) const;
  Microbatch& Of(int id);
  bool Recomputes(int layer) const;
  Tensor Activation(Bytes size, bool evictable);
  void ReadBatch(Microbatch& microbatch, int layer, DeviceTask* task);
  // What a forward makes and leaves; `keeps`: what autograd saves, too.
  void AddOutputs(Microbatch& microbatch, int layer, bool keeps, DeviceTask* task);
  // Weights that the task reads; recorded is one of each of the layer's references.
  void ReadWeights(int layer, int version, bool all, DeviceTask* task);
  void AddGradients(int layer, bool first, DeviceTask* task);
  void SendGradients(int layer, bool last, Operation made);
  void SendGradient(int block, bool last, Operation made);
  void DropWeights(int layer, bool backward, bool last, Operation after);

  const LayerCosts& costs_;
  const model::LayerRange layers_;
  const DevicePolicy policy_;
  Timeline& timeline_;
  Recording* const recording_;
  DeviceMemory memory_;
  std::vector<int> blocks_;
  std::vector<Block> blocks_of_;  // by block
  absl::flat_hash_map<int, Microbatch> microbatches_;
};

}  // namespace harmony::baselines
