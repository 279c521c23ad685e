#pragma once

// One step of training the chain of an ExportedFixture by the layer runner.

#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "tests/unit/worker/graphs/exported_fixture.h"
#include "worker/device/compute_device.h"
#include "worker/layers/layer_runner.h"

namespace harmony::worker {

inline constexpr int64_t kSamples = 2, kMicrobatches = 3;

// Memory that is not the workspace's, zeroed.
class Buffer {
 public:
  explicit Buffer(Bytes size);
  template <typename T>
  T* data(Bytes offset = Bytes()) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_.get()) + offset.count());
  }
  DeviceAddress address() const;
  std::string bytes() const {
    return std::string(data<char>(), static_cast<size_t>(size_.count()));
  }

 private:
  Bytes size_;
  std::unique_ptr<void, decltype(&std::free)> data_;
};

// Weights, inputs from the data set and what a step makes of them. The same numbers in each object.
class ExportedStep {
 public:
  ExportedStep(const ExportedFixture& fixture, ComputeDevice& device);

  // Microbatch by microbatch, with fresh layers, the last group fused. `keep`: what forwards
  // computed is kept for the backwards.
  absl::Status Run(const std::vector<model::LayerRange>& groups, bool keep = false);

  at::Tensor Weight(const std::string& name) const;
  // What lies in the place of the gradient, the sum over the references.
  at::Tensor Gradient(const std::string& name) const;
  // Input 0 or 1 of a microbatch, as int64; and the numbers themselves.
  at::Tensor Input(int input, int64_t microbatch) const;
  int32_t* Numbers(int input, int64_t microbatch) const {
    return inputs_[microbatch][input].data<int32_t>();
  }
  double LossSum() const;
  int64_t LabelCount() const;
  // All bits that the step makes.
  std::vector<std::string> Bits() const;

 private:
  at::Tensor View(const Buffer& block, const model::TensorSpec& tensor,
                  const model::StoredAs& form) const;
  GroupBinding Bind(model::LayerRange group, int64_t microbatch, bool gradients) const;
  absl::Status Microbatch(LayerRunner& runner, const std::vector<model::LayerRange>& groups,
                          bool keep, int64_t microbatch) const;

  const ExportedFixture& fixture_;
  const model::ModelSpec model_;
  ComputeDevice& device_;
  std::vector<Buffer> weights_, gradients_, losses_;
  std::vector<std::vector<Buffer>> inputs_;
};

}  // namespace harmony::worker
