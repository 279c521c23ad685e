#include "worker/layers/stored_gradient.h"

namespace harmony::worker {
namespace {

// A block's numbers that have the same types, gaps included: those at `begin` and behind it.
struct Run {
  const model::TensorSpec* begin;
  int64_t count = 0;  // the same in both forms
};

// Of all that has a gradient: a fixed tensor has a type and a place there, but no numbers.
std::vector<Run> RunsOf(const model::ParamBlock& block) {
  std::vector<Run> runs;
  const auto end_at = [&runs](Bytes until) {
    if (runs.empty()) return;
    const model::StoredAs& form = runs.back().begin->accumulator;
    runs.back().count = (until - form.offset).count() / SizeOf(form.dtype).count();
  };
  for (const model::TensorSpec& tensor : block.tensors) {
    if (tensor.role == model::TensorRole::kFixed) continue;
    if (!runs.empty() && runs.back().begin->accumulator.dtype == tensor.accumulator.dtype &&
        runs.back().begin->gradient.dtype == tensor.gradient.dtype) {
      continue;
    }
    end_at(tensor.accumulator.offset);
    runs.push_back({&tensor});
  }
  end_at(block.accumulator_bytes);
  return runs;
}

DeviceTensor SumsOf(const Run& run, DeviceAddress gradient) {
  return {gradient + run.begin->accumulator.offset, run.begin->accumulator.dtype, {run.count}};
}

}  // namespace

void AddGradient(ComputeDevice& device, const model::ParamBlock& block, DeviceAddress from,
                 DeviceAddress to) {
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
