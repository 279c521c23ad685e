#pragma once

// Where the things lie that stay on a device from forward to backward (LayerGroup::keep_*): each
// has a place of its own, fixed for the whole job, in the last bytes of the device's resident
// region; executions stack their memory below. All of these live at once when the forward ends, so
// places that were shared would save nothing; and since a thing is made anew only after the group
// has been updated, nobody ever waits for one. PURE.

#include <utility>
#include <vector>

#include "common/plan/plan.h"

namespace harmony::dispatch {

class KeptLayout {
 public:
  KeptLayout(const model::ModelSpec& model, const plan::Plan& plan);

  // Taken from the end of the device's region.
  Bytes bytes(int device) const { return bytes_[device]; }
  // Offset in the region of the shard's device of a block that a backward group keeps. REQUIRES: it
  // does.
  Bytes Weights(int group, int shard, int block) const;
  // The device that keeps a shard's stash of a boundary; -1: none does.
  int StashDevice(int boundary, int shard) const {
    return of_shard(shard).stashes[boundary].device;
  }
  // Offset in that device's region; microbatches follow each other. REQUIRES: a device keeps it.
  Bytes Stash(int boundary, int microbatch) const {
    const Place& place = of_shard(microbatch / shard_microbatches_).stashes[boundary];
    return place.begin + place.stride * (microbatch % shard_microbatches_);
  }
  // Offset, in its device's region, of what a backward group keeps of the forward of a microbatch.
  // REQUIRES: LayerGroup::keep_activations.
  Bytes Activations(int group, int microbatch) const {
    const Place& place = of_shard(microbatch / shard_microbatches_).activations[group];
    return place.begin + place.stride * (microbatch % shard_microbatches_);
  }

 private:
  // Of the microbatches of a shard.
  struct Place {
    int device = -1;
    Bytes begin, stride;
  };
  struct Shard {
    std::vector<std::vector<std::pair<int, Bytes>>> weights;  // by backward group: block, offset
    std::vector<Place> stashes;                               // by boundary
    std::vector<Place> activations;                           // by backward group
  };
  void AddShard(const model::ModelSpec& model, const plan::Plan& plan, int number);
  const Shard& of_shard(int number) const { return shards_[static_cast<size_t>(number)]; }

  int shard_microbatches_;
  std::vector<Bytes> bytes_;  // by device
  std::vector<Shard> shards_;
};

}  // namespace harmony::dispatch
