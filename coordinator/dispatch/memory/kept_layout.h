#pragma once

// Where the things lie that stay on a device from forward to backward (LayerGroup::keep_*): each
// has a place of its own, fixed for the whole job, in the last bytes of the device's resident
// region; executions stack their memory below. All of these live at once when the forward ends, so
// places that were shared would save nothing; and since a thing is made anew only after the group
// has been updated, nobody ever waits for one. PURE.

#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
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
  // The device that keeps a microbatch's stash of a boundary; -1: none does.
  int StashDevice(int boundary, int microbatch) const {
    const Places& places = stashes_[static_cast<size_t>(boundary)];
    return places.empty() ? -1 : PlaceOf(places, microbatch).shard.device;
  }
  // Offset in that device's region; microbatches follow each other. REQUIRES: a device keeps it.
  Bytes Stash(int boundary, int microbatch) const {
    return PlaceOf(stashes_[static_cast<size_t>(boundary)], microbatch).At(microbatch);
  }
  // Offset, in its device's region, of what a backward group keeps of the forward of a microbatch.
  // REQUIRES: LayerGroup::keep_activations.
  Bytes Activations(int group, int microbatch) const {
    return PlaceOf(activations_[static_cast<size_t>(group)], microbatch).At(microbatch);
  }

 private:
  // Of the microbatches of a shard.
  struct Place {
    plan::Shard shard;
    Bytes begin, stride;
    Bytes At(int microbatch) const { return begin + stride * (microbatch - shard.first); }
  };
  using Places = absl::InlinedVector<Place, 2>;  // of the shards of a group; none: it keeps nothing
  static const Place& PlaceOf(const Places& places, int microbatch) {
    size_t shard = 0;
    while (microbatch >= places[shard].shard.end()) ++shard;
    return places[shard];
  }
  Bytes Take(const plan::Plan& plan, int device, Bytes size);
  Places TakePlaces(const plan::Plan& plan, const plan::LayerGroup& group, Bytes stride);

  std::vector<Bytes> bytes_;                               // by device
  std::vector<Places> stashes_;                            // by boundary
  std::vector<Places> activations_;                        // by backward group
  using BlockPlaces = std::vector<std::pair<int, Bytes>>;  // block, offset
  std::vector<std::vector<BlockPlaces>> weights_;          // by backward group, shard
};

}  // namespace harmony::dispatch
