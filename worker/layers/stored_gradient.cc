#include "worker/layers/stored_gradient.h"

namespace harmony::worker {

std::vector<DeviceTensor> StoreGradient(ComputeDevice& device, const model::ParamBlock& block,
                                        DeviceAddress gradient) {
  std::vector<DeviceTensor> stored;
  for (size_t i = 0; i < block.tensors.size();) {
    const model::TensorSpec& first = block.tensors[i];
    size_t end = i + 1;
    while (end < block.tensors.size() &&
           block.tensors[end].accumulator.dtype == first.accumulator.dtype &&
           block.tensors[end].gradient.dtype == first.gradient.dtype) {
      ++end;
    }
    const Bytes until = end < block.tensors.size() ? block.tensors[end].accumulator.offset
                                                   : block.accumulator_bytes;
    // The same number of elements in both forms, gaps included.
    const int64_t count =
        (until - first.accumulator.offset).count() / SizeOf(first.accumulator.dtype).count();
    const DeviceTensor sum{gradient + first.accumulator.offset, first.accumulator.dtype, {count}};
    stored.push_back({gradient + first.gradient.offset, first.gradient.dtype, {count}});
    // From the front to the back, so that none is written where the next one is yet to be read.
    if (stored.back().address != sum.address || stored.back().dtype != sum.dtype) {
      device.Convert(sum, stored.back());
    }
    i = end;
  }
  return stored;
}

}  // namespace harmony::worker
