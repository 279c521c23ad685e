#pragma once

// Where the things lie that stay on a device from forward to backward (LayerGroup::keep_*): each
// has a place of its own, fixed for the whole job, in the last bytes of the device's resident
// region; visits stack their memory below. All of these live at once when the forward ends, so
// places that were shared would save nothing; and since a thing is made anew only after the group
// has been updated, nobody ever waits for one. PURE.

#include <utility>
#include <vector>

#include "common/plan/plan.h"

namespace harmony {

class KeptLayout {
 public:
  KeptLayout(const ModelSpec& model, const Plan& plan);

  // Taken from the end of the device's region.
  Bytes bytes(int device) const { return bytes_[device]; }
  // Offset in the device's region of a block that a backward group keeps. REQUIRES: it does.
  Bytes Weights(int group, int block) const;
  // The device that keeps the stash of a boundary; -1: none does.
  int StashDevice(int boundary) const { return stashes_[boundary].device; }
  // Offset in that device's region; microbatches follow each other. REQUIRES:
  // StashDevice(boundary) >= 0.
  Bytes Stash(int boundary, int microbatch) const {
    return stashes_[boundary].begin + stashes_[boundary].stride * microbatch;
  }
  // Offset, in its device's region, of what a backward group keeps of the forward of a microbatch.
  // REQUIRES: LayerGroup::keep_activations.
  Bytes Activations(int group, int microbatch) const {
    return activations_[group].begin + activations_[group].stride * microbatch;
  }

 private:
  struct StashPlace {
    int device = -1;
    Bytes begin, stride;
  };
  struct ActivationPlace {
    Bytes begin, stride;
  };
  std::vector<Bytes> bytes_;                                 // by device
  std::vector<std::vector<std::pair<int, Bytes>>> weights_;  // by backward group: block, offset
  std::vector<StashPlace> stashes_;                          // by boundary
  std::vector<ActivationPlace> activations_;                 // by backward group
};

}  // namespace harmony
