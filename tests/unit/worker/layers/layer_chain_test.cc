// The runner on a chain whose layers and device are made up, so that it shows what the interface
// carries beside the built-in families: three tensors on a boundary, two of which skip a
// layer and one of which has no gradient, side inputs, a tied and a frozen parameter, running
// statistics, a device that queues its work.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "worker/kernels/cpu_row_kernels.h"
#include "worker/layers/layer_runner.h"

namespace harmony::worker {
namespace {

constexpr int64_t kWidth = 3;  // numbers of a tensor, for a sample
constexpr int64_t kSamples = 2, kMicrobatches = 3;

// Memory of its own, in which nothing happens before Synchronize.
class QueueingDevice : public ComputeDevice {
 public:
  LayerTarget target() const override { return {}; }
  DeviceAddress resident() const override { return DeviceAddress(kSlotAlignment); }
  void PrepareThread() override { ++prepared; }
  absl::StatusOr<std::unique_ptr<WorkspaceBlock>> Allocate(Bytes size) override {
    class Block : public WorkspaceBlock {
     public:
      Block(DeviceAddress address, QueueingDevice& device)
          : WorkspaceBlock(address), device_(device) {}
      ~Block() override { --device_.blocks; }

     private:
      QueueingDevice& device_;
    };
    ++blocks;
    return std::make_unique<Block>(Take(size), *this);
  }
  void Zero(DeviceAddress address, Bytes size) override {
    Queue([=, this] { std::memset(At<char>(address), 0, static_cast<size_t>(size.count())); });
  }
  void Add(const DeviceTensor& from, const DeviceTensor& to, DType type) override {
    Queue([=, this] {  // cut off rather than rounded
      const uint32_t kept = type == DType::kBF16 ? 0xffff0000u : ~0u;
      const auto cut = [kept](float x) {
        return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & kept);
      };
      for (int64_t i = 0; i < to.elements(); ++i) {
        At<float>(to.address)[i] = cut(At<float>(to.address)[i]) + cut(At<float>(from.address)[i]);
      }
    });
  }
  void Convert(const DeviceTensor& from, const DeviceTensor& to) override {
    Queue([=, this] {
      for (int64_t i = 0; i < to.elements(); ++i) {  // cut off rather than rounded
        At<uint16_t>(to.address)[i] = At<uint16_t>(from.address)[2 * i + 1];
      }
    });
  }
  void CheckFinite(const DeviceTensor& tensor, int tag) override {
    Queue([=, this] {
      for (int64_t i = 0; i < tensor.elements() && first_bad_ < 0; ++i) {
        const double x = tensor.dtype == DType::kF64 ? At<double>(tensor.address)[i]
                                                     : At<float>(tensor.address)[i];
        if (!std::isfinite(x)) first_bad_ = tag;
      }
    });
  }
  const RowKernels& row_kernels() const override { return CpuRowKernels(); }
  absl::StatusOr<int> Synchronize() override {
    for (const auto& work : queue_) work();
    queue_.clear();
    if (!lost.ok()) return lost;
    return std::exchange(first_bad_, -1);
  }
  absl::Status Write(DeviceAddress to, absl::Span<const std::byte> from) override {
    std::memcpy(At<char>(to), from.data(), from.size());
    return absl::OkStatus();
  }
  absl::Status Read(DeviceAddress from, absl::Span<std::byte> to) override {
    std::memcpy(to.data(), At<char>(from), to.size());
    return absl::OkStatus();
  }
  Usage usage() const override { return {}; }

  void Queue(std::function<void()> work) { queue_.push_back(std::move(work)); }
  // Memory is never used twice.
  DeviceAddress Take(Bytes size) {
    const DeviceAddress address = resident() + end_;
    end_ = (end_ + size).AlignUp(kSlotAlignment);
    EXPECT_LE(end_.count(), static_cast<int64_t>(memory_.size() * sizeof(double)));
    return address;
  }
  template <typename T>
  T* At(DeviceAddress address) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(memory_.data()) +
                                (address.value() - resident().value()));
  }

  absl::Status lost;  // what Synchronize says of queued work
  int blocks = 0;     // of the workspace, in use
  int prepared = 0;

 private:
  std::vector<double> memory_ = std::vector<double>(1 << 16);
  Bytes end_;
  std::vector<std::function<void()>> queue_;
  int first_bad_ = -1;
};

// x, the integers k and s are the tensors of each boundary, w the layer's parameter:
//   first  x = w * id, k = id, s = id
//   middle x' = w * x * x (w is frozen; x * x is saved), k' = k, s' = s; counts its forwards
//   last   loss = sum (w * x + s - label)^2 / 2 where k is not 3, w that of the first layer
class ToyLayer : public Layer {
 public:
  ToyLayer(QueueingDevice& device, int index) : device_(device), index_(index) {}

  Bytes KeptBytes(int64_t samples) const override {
    return index_ == 1 ? Bytes(samples * kWidth * 4).AlignUp(kSlotAlignment) : Bytes();
  }
  std::unique_ptr<SavedActivations> NewSaved(int64_t samples, DeviceAddress place) const override {
    if (index_ != 1) return nullptr;
    auto saved = std::make_unique<Saved>();
    saved->square = place;
    if (!place) {
      saved->block = *device_.Allocate(KeptBytes(samples));
      saved->square = saved->block->address();
    }
    return saved;
  }

  absl::Status Forward(const LayerCall& call, Tensors inputs, Tensors outputs,
                       SavedActivations* saved) override {
    const int64_t n = call.samples * kWidth;
    const float* w = Weight(call);
    if (index_ == 0) {
      const int32_t* ids = device_.At<int32_t>(call.batch[0].address);
      float *x = Data(outputs[0]), *s = Data(outputs[2]);
      int32_t* k = device_.At<int32_t>(outputs[1].address);
      device_.Queue([=] {
        for (int64_t i = 0; i < n; ++i) x[i] = *w * ids[i], k[i] = ids[i], s[i] = ids[i];
      });
      return absl::OkStatus();
    }
    if (!call.recompute) ++forwards;
    const float *x = Data(inputs[0]), *s = Data(inputs[2]);
    const int32_t* k = device_.At<int32_t>(inputs[1].address);
    float* square = saved ? device_.At<float>(static_cast<Saved*>(saved)->square) : nullptr;
    float* y = outputs.empty() ? nullptr : Data(outputs[0]);
    float* skipped = outputs.empty() ? nullptr : Data(outputs[2]);
    int32_t* copied = outputs.empty() ? nullptr : device_.At<int32_t>(outputs[1].address);
    device_.Queue([=] {
      for (int64_t i = 0; i < n; ++i) {
        if (square) square[i] = x[i] * x[i];
        if (y) y[i] = *w * (x[i] * x[i]), copied[i] = k[i], skipped[i] = s[i];
      }
    });
    return absl::OkStatus();
  }

  absl::Status Backward(const LayerCall& call, Tensors inputs, Tensors output_gradients,
                        std::unique_ptr<SavedActivations> saved, Tensors input_gradients) override {
    const int64_t n = call.samples * kWidth;
    const float* dy = Data(output_gradients[0]);
    if (index_ == 0) {
      const int32_t* ids = device_.At<int32_t>(call.batch[0].address);
      float* dw = Gradient(call);
      device_.Queue([=] {
        for (int64_t i = 0; i < n; ++i) *dw += dy[i] * static_cast<float>(ids[i]);
      });
      return absl::OkStatus();
    }
    const float *w = Weight(call), *x = Data(inputs[0]), *ds_out = Data(output_gradients[1]);
    float *dx = Data(input_gradients[0]), *ds = Data(input_gradients[1]);
    float* square = device_.At<float>(static_cast<Saved&>(*saved).square);
    device_.Queue([=] {
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_TRUE(square[i] == x[i] * x[i] || !std::isfinite(x[i]));
        dx[i] = 2 * *w * x[i] * dy[i], ds[i] = ds_out[i];
        square[i] = -1;  // given up
      }
    });
    return absl::OkStatus();
  }

  absl::Status ForwardBackward(const LayerCall& call, const LossBinding& loss, Tensors inputs,
                               Tensors input_gradients) override {
    const int64_t n = call.samples * kWidth;
    const float *w = Weight(call), *x = Data(inputs[0]), *s = Data(inputs[2]);
    const int32_t* k = device_.At<int32_t>(inputs[1].address);
    float *dw = Gradient(call), *dx = Data(input_gradients[0]), *ds = Data(input_gradients[1]);
    const int32_t* labels = device_.At<int32_t>(call.batch[1].address);
    auto* slot = device_.At<command::LossSlot>(loss.slot);
    const float scale = 1.0f / static_cast<float>(loss.total_labels);
    device_.Queue([=] {
      *slot = command::LossSlot();
      for (int64_t i = 0; i < n; ++i) {
        const float error = k[i] == 3 ? 0 : *w * x[i] + s[i] - static_cast<float>(labels[i]);
        slot->loss_sum += 0.5 * error * error;
        ++slot->label_count;
        ds[i] = scale * error, dx[i] = ds[i] * *w;
        *dw += ds[i] * x[i];
      }
    });
    return absl::OkStatus();
  }

  int forwards = 0;  // what a running statistic is made of

 private:
  struct Saved : SavedActivations {
    std::shared_ptr<WorkspaceBlock> block;
    DeviceAddress square;  // f32 [samples, kWidth]
  };

  float* Data(const DeviceTensor& tensor) {
    EXPECT_TRUE(tensor.address);
    return device_.At<float>(tensor.address);
  }
  const float* Weight(const LayerCall& call) {
    for (const ReferenceBinding& reference : call.references) {
      if (reference.reference == index_) return device_.At<float>(reference.weights);
    }
    return nullptr;
  }
  float* Gradient(const LayerCall& call) {
    for (const ReferenceBinding& reference : call.references) {
      if (reference.reference == index_) return device_.At<float>(reference.gradients);
    }
    return nullptr;
  }

  QueueingDevice& device_;
  const int index_;
};

model::ModelSpec ToyModel() {
  model::ModelSpec model;
  const model::SampleTensor floats{"x", DType::kF32, {kWidth}}, ids{"ids", DType::kI32, {kWidth}};
  model.boundaries = {{}, {floats, ids, floats}, {floats, ids, floats}, {}};
  model.inputs.resize(2);
  model.inputs[0] = {ids, 0, {0}};
  model.inputs[1] = {ids, 0, {2}};
  for (const char* name : {"tied", "frozen"}) {
    model::ParamBlock block;
    block.name = name;
    model::TensorSpec tensor;
    tensor.name = name;
    tensor.shape = {1};
    tensor.elements = 1;
    model::AddTensor(block, tensor);
    model::AddBlock(model, block);
  }
  for (int layer : {0, 1, 2}) {
    model.layers.push_back({layer, 0, {}});
    model::AddReference(model, layer, layer == 1 ? 1 : 0);
  }
  return model;
}

struct Result {
  std::vector<float> gradients;  // of the references 0 and 2
  double loss = 0;
  int forwards = 0;
  absl::Status status;
  bool operator==(const Result& o) const {
    return gradients == o.gradients && loss == o.loss && forwards == o.forwards;
  }
};

// All microbatches through these groups, forward by forward, then back.
class ToyRun {
 public:
  explicit ToyRun(float weight = 0.5f) {
    LayerChain layers;
    for (int index : {0, 1, 2}) layers.push_back(std::make_unique<ToyLayer>(device_, index));
    middle_ = static_cast<ToyLayer*>(layers[1].get());
    runner_ = std::make_unique<LayerRunner>(model_, std::move(layers), device_);
    for (int reference : {0, 1, 2}) {
      const model::ParamBlock& block = model_.blocks[model_.references[reference].block];
      const DeviceAddress gradients =
          reference == 1 ? DeviceAddress() : device_.Take(block.accumulator_bytes);
      references_.push_back(
          {reference, reference == 2 ? references_[0].weights : device_.Take(block.weight_bytes),
           gradients});
      if (gradients) *device_.At<float>(gradients) = 99;  // of the step before
    }
    *device_.At<float>(references_[0].weights) = weight;
    *device_.At<float>(references_[1].weights) = 0.25f;
    const Bytes ids(kMicrobatches * kSamples * kWidth * 4);
    for (DeviceAddress& input : inputs_) input = device_.Take(ids);
    for (int i = 0; i < kMicrobatches * kSamples * kWidth; ++i) {
      device_.At<int32_t>(inputs_[0])[i] = i % 7;
      device_.At<int32_t>(inputs_[1])[i] = i % 5;
    }
  }

  Result Run(const std::vector<model::LayerRange>& groups, bool keep, bool forwards_at_once) {
    // Slots: microbatch after microbatch.
    const Bytes slot = model::BoundaryBytes(model_, 1, kSamples).AlignUp(kSlotAlignment);
    std::map<int, DeviceAddress> boundaries, gradients;
    for (int boundary : {1, 2}) {
      boundaries[boundary] = device_.Take(slot * kMicrobatches);
      gradients[boundary] = device_.Take(slot * kMicrobatches);
    }
    const DeviceAddress kept = device_.Take(Bytes(4 * kSlotAlignment * kMicrobatches));
    const DeviceAddress loss = device_.Take(Bytes(sizeof(command::LossSlot)) * kMicrobatches);
    const auto bind = [&](model::LayerRange layers, int m, int64_t microbatches) {
      GroupBinding binding;
      binding.layers = layers;
      binding.samples = kSamples * microbatches;
      binding.microbatch = kSamples;
      for (int layer = layers.first; layer <= layers.last; ++layer) {
        binding.references.push_back(references_[static_cast<size_t>(layer)]);
      }
      const Bytes ids(m * kSamples * kWidth * 4);
      binding.batch = {inputs_[0] + ids, inputs_[1] + ids};
      if (layers.first > 0) binding.input = boundaries[layers.first] + slot * m;
      if (layers.first > 0) binding.input_gradient = gradients[layers.first] + slot * m;
      if (keep) binding.kept = kept + Bytes(4 * kSlotAlignment * m);
      binding.first_microbatch = m == 0;
      binding.last_microbatch = binding.stores_gradients = m == kMicrobatches - 1;
      return binding;
    };
    Result result;
    const auto check = [&](const absl::Status& status) { result.status.Update(status); };
    const size_t last = groups.size() - 1;
    for (size_t g = 0; g < last; ++g) {
      const int step = forwards_at_once ? kMicrobatches : 1;
      for (int m = 0; m < kMicrobatches; m += step) {
        GroupBinding forward = bind(groups[g], m, step);
        if (groups[g].first == 0) forward.outputs.push_back({1, boundaries[1] + slot * m});
        if (groups[g].last > 0)
          forward.outputs.push_back(
              {groups[g].last + 1, boundaries[groups[g].last + 1] + slot * m});
        check(runner_->RunForward(forward));
      }
    }
    for (int m = 0; m < kMicrobatches; ++m) {
      GroupBinding fused = bind(groups[last], m, 1);
      fused.kept = DeviceAddress();
      fused.loss = {loss + Bytes(sizeof(command::LossSlot)) * m, kMicrobatches * kSamples * kWidth};
      check(runner_->RunForwardBackward(fused));
      for (size_t g = last; g-- > 0;) {
        GroupBinding backward = bind(groups[g], m, 1);
        if (groups[g].first == 0 && groups[g].last > 0) backward.input = boundaries[1] + slot * m;
        backward.output_gradient = gradients[groups[g].last + 1] + slot * m;
        check(runner_->RunBackward(backward));
      }
      result.loss += device_.At<command::LossSlot>(loss)[m].loss_sum;
    }
    EXPECT_EQ(device_.blocks, 0);
    result.forwards = std::exchange(middle_->forwards, 0);
    for (int reference : {0, 2})
      result.gradients.push_back(*device_.At<float>(references_[reference].gradients));
    return result;
  }

  QueueingDevice device_;

 private:
  const model::ModelSpec model_ = ToyModel();
  ToyLayer* middle_ = nullptr;
  std::unique_ptr<LayerRunner> runner_;
  std::vector<ReferenceBinding> references_;
  DeviceAddress inputs_[2];
};

TEST(LayerChainTest, EveryWayToRunTheChainGivesTheSame) {
  ToyRun run;
  const Result expected = run.Run({{0, 2}}, false, false);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_EQ(expected.forwards, kMicrobatches);
  EXPECT_GT(run.device_.prepared, 0);
  const std::vector<std::vector<model::LayerRange>> groupings = {
      {{0, 2}}, {{0, 0}, {1, 2}}, {{0, 1}, {2, 2}}, {{0, 0}, {1, 1}, {2, 2}}};
  for (const auto& groups : groupings) {
    for (bool keep : {false, true}) {
      for (bool at_once : {false, true}) {
        if (keep && at_once) continue;
        const Result found = run.Run(groups, keep, at_once);
        EXPECT_TRUE(found.status.ok()) << found.status;
        EXPECT_TRUE(found == expected)
            << groups.size() << " groups, kept: " << keep << ", forwards at once: " << at_once;
      }
    }
  }
}

// By finite differences of the whole chain; the tied parameter's gradient is the sum of both
// references.
TEST(LayerChainTest, GradientsAreDerivatives) {
  const double step = 1e-3;
  const Result at = ToyRun(0.5f).Run({{0, 1}, {2, 2}}, false, false);
  const double above = ToyRun(0.5f + 1e-3f).Run({{0, 2}}, false, false).loss;
  const double below = ToyRun(0.5f - 1e-3f).Run({{0, 2}}, false, false).loss;
  const double derivative =
      (above - below) / (2 * step) / static_cast<double>(kMicrobatches * kSamples * kWidth);
  EXPECT_NEAR((at.gradients[0] + at.gradients[1]) / derivative, 1, 1e-3);
}

TEST(LayerChainTest, WhatIsNotFiniteIsNamedByTheFirstLayer) {
  const float inf = std::numeric_limits<float>::infinity();
  const Result result = ToyRun(inf).Run({{0, 1}, {2, 2}}, false, false);
  EXPECT_NE(result.status.message().find("output of layer 0 is not finite"), std::string::npos)
      << result.status;
}

class FailingLayer : public ToyLayer {
 public:
  using ToyLayer::ToyLayer;
  absl::Status Forward(const LayerCall&, Tensors, Tensors, SavedActivations*) override {
    return absl::InternalError("a kernel could not be started");
  }
};

// Whoever starts kernels notices it first, in words of its own.
TEST(LayerRunnerTest, ALostDeviceExplainsWhateverElseFailed) {
  QueueingDevice device;
  LayerChain layers;
  layers.push_back(std::make_unique<FailingLayer>(device, 0));
  for (int index : {1, 2}) layers.push_back(std::make_unique<ToyLayer>(device, index));
  const model::ModelSpec model = ToyModel();
  LayerRunner runner(model, std::move(layers), device);
  GroupBinding binding;
  binding.layers = {0, 0};
  binding.samples = binding.microbatch = kSamples;
  binding.references = {{0, device.Take(Bytes(4)), DeviceAddress()}};
  const Bytes ids(kSamples * kWidth * 4);
  binding.batch = {device.Take(ids), device.Take(ids)};
  binding.outputs = {{1, device.Take(model::BoundaryBytes(model, 1, kSamples))}};
  EXPECT_TRUE(absl::IsInternal(runner.RunForward(binding)));
  device.lost = absl::UnavailableError("the device is lost");
  EXPECT_TRUE(absl::IsUnavailable(runner.RunForward(binding)));
}

}  // namespace
}  // namespace harmony::worker
