#include "worker/layers/stored_gradient.h"

namespace harmony::worker {
namespace {

// A block's numbers that have the same types, gaps included: those at `begin` and behind it.
struct Run {
  const model::TensorSpec* begin;
  int64_t count = 0;  // the same in both forms
};

std::vector<Run> RunsOf(const model::ParamBlock& block) {
  std::vector<Run> runs;
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
    const Bytes size = until - first.accumulator.offset;
    runs.push_back({&first, size.count() / SizeOf(first.accumulator.dtype).count()});
    i = end;
  }
  return runs;
}

DeviceTensor SumsOf(const Run& run, DeviceAddress gradient) {
  return {gradient + run.begin->accumulator.offset, run.begin->accumulator.dtype, {run.count}};
}

}  // namespace

DeviceAddress GradientBuffer(const model::ParamBlock& block, DeviceAddress buffers, int buffer) {
  return buffers + block.accumulator_bytes.AlignUp(kSlotAlignment) * buffer;
}

void AddGradient(ComputeDevice& device, const model::ParamBlock& block, DeviceAddress from,
                 DeviceAddress to) {
  // One of fixed tensors alone has no sums, and a place of their type, which Add does not take.
  bool fixed = true;
  for (const model::TensorSpec& tensor : block.tensors) {
    fixed = fixed && tensor.role == model::TensorRole::kFixed;
  }
  if (fixed) return;
  for (const Run& run : RunsOf(block)) {
    device.Add(SumsOf(run, from), SumsOf(run, to), run.begin->gradient.dtype);
  }
}

std::vector<DeviceTensor> StoreGradient(ComputeDevice& device, const model::ParamBlock& block,
                                        DeviceAddress gradient) {
  std::vector<DeviceTensor> stored;
  for (const Run& run : RunsOf(block)) {
    const DeviceTensor sum = SumsOf(run, gradient);
    const model::StoredAs& form = run.begin->gradient;
    stored.push_back({gradient + form.offset, form.dtype, {run.count}});
    // From the front to the back, so that none is written where the next one is yet to be read.
    if (stored.back().address != sum.address || stored.back().dtype != sum.dtype) {
      device.Convert(sum, stored.back());
    }
  }
  return stored;
}

}  // namespace harmony::worker
