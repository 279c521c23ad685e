#pragma once

// How a device adds up a block's gradients, and from what it has added up to what leaves it: the
// two forms of a gradient that model::ParamBlock describes.

#include <vector>

#include "common/model/model_spec.h"
#include "worker/device/compute_device.h"

namespace harmony::worker {

// Adds sums of a block to others of it, as a sum of plan/sum_tree.h; on the compute lane's thread.
void AddGradient(ComputeDevice& device, const model::ParamBlock& block, DeviceAddress from,
                 DeviceAddress to);

// Brings a block's sums, which lie at `gradient`, into the form in which they leave the device, in
// their place; on the compute lane's thread. Returns the tensors that this is made of: as few as
// its types allow, with gaps, which are zero.
std::vector<DeviceTensor> StoreGradient(ComputeDevice& device, const model::ParamBlock& block,
                                        DeviceAddress gradient);

}  // namespace harmony::worker
