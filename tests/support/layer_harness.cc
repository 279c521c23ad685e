#include "tests/support/layer_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "common/command/objects.h"
#include "common/model/model_sizes.h"

namespace harmony::testing_support {

constexpr int64_t kTotalLabels = 64;
constexpr int64_t kFloat = sizeof(float);

// A piece of the device's memory.
struct LayerHarness::Buffer {
  worker::ComputeDevice& device;
  std::unique_ptr<worker::WorkspaceBlock> block;
  Bytes size;

  template <typename T>
  void Write(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    const absl::Status status = device.Write(
        block->address(), absl::Span<const std::byte>(bytes, values.size() * sizeof(T)));
    EXPECT_TRUE(status.ok()) << status;
  }
  template <typename T = float>
  std::vector<T> Read() const {
    std::vector<T> values(static_cast<size_t>(size.count()) / sizeof(T));
    auto* bytes = reinterpret_cast<std::byte*>(values.data());
    const absl::Status status =
        device.Read(block->address(), absl::Span<std::byte>(bytes, values.size() * sizeof(T)));
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }
};

struct LayerHarness::Point {
  std::string name;
  Buffer* values = nullptr;
  Buffer* gradient = nullptr;
  size_t begin = 0, gradient_begin = 0;  // elements of the buffers
  size_t count = 0;
};

LayerHarness::LayerHarness(LayerCase& subject, int layer)
    : subject_(subject), layer_(layer), samples_(subject.samples), random_(17 + layer) {
  subject_.device->PrepareThread();
  for (int reference : subject_.model.layers[layer].references) FillReference(reference);
  for (size_t i = 0; i < subject_.model.inputs.size(); ++i) FillInput(i, 3 * samples_);
  inputs_ = Boundary(layer, samples_, 1.0f);
  input_gradients_ = Boundary(layer, samples_, 0);
  outputs_ = Boundary(layer + 1, samples_, 0);
  output_gradients_ = Boundary(layer + 1, samples_, 0.1f);
  loss_ = NewBuffer(Bytes(sizeof(command::LossSlot)));
}

LayerHarness::~LayerHarness() = default;

std::unique_ptr<LayerHarness::Buffer> LayerHarness::NewBuffer(Bytes size) const {
  auto block = subject_.device->Allocate(size);
  EXPECT_TRUE(block.ok()) << block.status();
  subject_.device->Zero((*block)->address(), size);
  return std::unique_ptr<Buffer>(new Buffer{*subject_.device, *std::move(block), size});
}

std::unique_ptr<LayerHarness::Buffer> LayerHarness::Noise(int64_t floats, float scale) {
  auto buffer = NewBuffer(Bytes(floats * kFloat));
  std::vector<float> values(static_cast<size_t>(floats));
  for (float& value : values) value = scale * static_cast<float>(2 * random_.NextDouble() - 1);
  buffer->Write(values);
  return buffer;
}

void LayerHarness::FillReference(int reference) {
  const model::ParamBlock& block =
      subject_.model.blocks[subject_.model.references[reference].block];
  weights_.push_back(Noise(block.weight_bytes.count() / kFloat, 0.3f));
  std::vector<float> values = weights_.back()->Read();
  for (const model::TensorSpec& tensor : block.tensors) {
    if (tensor.init != model::InitKind::kOnes) continue;
    for (int64_t i = 0; i < tensor.elements; ++i) values[tensor.weight.first_element() + i] += 1;
  }
  weights_.back()->Write(values);
  gradients_.push_back(NewBuffer(block.accumulator_bytes));
  references_.push_back(
      {reference, weights_.back()->block->address(), gradients_.back()->block->address()});
}

void LayerHarness::FillInput(size_t input, int64_t samples) {
  const model::BatchInput& type = subject_.model.inputs[input];
  data_.push_back(NewBuffer(type.tensor.per_sample() * samples));
  auto values = data_.back()->Read<int32_t>();
  for (int32_t& value : values) value = static_cast<int32_t>(random_.Below(type.values_below));
  data_.back()->Write(values);
  batch_.push_back(worker::TensorAt(type.tensor, data_.back()->block->address(), samples));
}

const std::vector<model::SampleTensor>& LayerHarness::TypesAt(int boundary) const {
  return subject_.model.boundaries[boundary];
}

LayerHarness::Buffers LayerHarness::Boundary(int boundary, int64_t samples, float scale) {
  Buffers buffers;
  for (const model::SampleTensor& type : TypesAt(boundary)) {
    buffers.push_back(Noise((type.per_sample() * samples).count() / kFloat, scale));
  }
  return buffers;
}

std::vector<worker::DeviceTensor> LayerHarness::TensorsOf(int boundary, int64_t samples,
                                                          const Buffers& buffers) const {
  std::vector<worker::DeviceTensor> tensors;
  for (size_t i = 0; i < buffers.size(); ++i) {
    tensors.push_back(
        worker::TensorAt(TypesAt(boundary)[i], buffers[i]->block->address(), samples));
  }
  return tensors;
}

worker::LayerCall LayerHarness::Call(int64_t samples, int64_t microbatch) {
  for (worker::DeviceTensor& input : batch_) input.shape[0] = samples;
  worker::LayerCall call;
  call.samples = samples;
  call.microbatch = microbatch;
  call.references = references_;
  call.batch = batch_;
  return call;
}

double LayerHarness::Value() {
  const auto inputs = TensorsOf(layer_, samples_, inputs_);
  const worker::LayerCall call = Call(samples_, samples_);
  if (last()) {
    const auto gradients = TensorsOf(layer_, samples_, input_gradients_);
    const worker::LossBinding loss{loss_->block->address(), kTotalLabels};
    EXPECT_EQ(layer().ForwardBackward(call, loss, inputs, gradients), absl::OkStatus());
    EXPECT_EQ(subject_.device->Synchronize().value_or(0), -1);
    return loss_->Read<double>()[0] / kTotalLabels;
  }
  const auto outputs = TensorsOf(layer_ + 1, samples_, outputs_);
  EXPECT_EQ(layer().Forward(call, inputs, outputs, nullptr), absl::OkStatus());
  EXPECT_EQ(subject_.device->Synchronize().value_or(0), -1);
  double sum = 0;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const std::vector<float> y = outputs_[i]->Read(), dy = output_gradients_[i]->Read();
    for (size_t k = 0; k < y.size(); ++k) sum += static_cast<double>(y[k]) * dy[k];
  }
  return sum;
}

void LayerHarness::Backward(worker::DeviceAddress place, bool add) {
  if (!add) {
    for (const auto& gradient : gradients_) {
      subject_.device->Zero(gradient->block->address(), gradient->size);
    }
  }
  if (last()) {
    Value();
    return;
  }
  const auto inputs = TensorsOf(layer_, samples_, inputs_);
  worker::LayerCall call = Call(samples_, samples_);
  std::unique_ptr<worker::SavedActivations> saved = layer().NewSaved(samples_, place);
  if (!place && saved != nullptr) {
    call.recompute = true;
    EXPECT_EQ(layer().Forward(call, inputs, {}, saved.get()), absl::OkStatus());
    call.recompute = false;
  }
  EXPECT_EQ(layer().Backward(call, inputs, TensorsOf(layer_ + 1, samples_, output_gradients_),
                             std::move(saved), TensorsOf(layer_, samples_, input_gradients_)),
            absl::OkStatus());
  EXPECT_EQ(subject_.device->Synchronize().value_or(0), -1);
}

std::vector<std::vector<float>> LayerHarness::Gradients() const {
  std::vector<std::vector<float>> all;
  for (const auto& gradient : gradients_) all.push_back(gradient->Read());
  for (const auto& gradient : input_gradients_) all.push_back(gradient->Read());
  return all;
}

std::vector<LayerHarness::Point> LayerHarness::Points() const {
  std::vector<Point> points;
  for (size_t i = 0; i < references_.size(); ++i) {
    const model::ParamBlock& block =
        subject_.model.blocks[subject_.model.references[references_[i].reference].block];
    for (const model::TensorSpec& tensor : block.tensors) {
      points.push_back({tensor.name, weights_[i].get(), gradients_[i].get(),
                        static_cast<size_t>(tensor.weight.first_element()),
                        static_cast<size_t>(tensor.accumulator.first_element()),
                        static_cast<size_t>(tensor.elements)});
    }
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    points.push_back({"input " + std::to_string(i), inputs_[i].get(), input_gradients_[i].get(), 0,
                      0, static_cast<size_t>(inputs_[i]->size.count() / kFloat)});
  }
  return points;
}

void LayerHarness::GradientsAreDerivatives() {
  for (const Point& point : Points()) {
    Backward(worker::DeviceAddress(), /*add=*/false);
    const std::vector<float> gradient = point.gradient->Read();
    const std::vector<float> values = point.values->Read();
    double gradient_norm = 0, norm = 0, sums[2];
    for (size_t i = 0; i < point.count; ++i) {
      const double g = gradient[point.gradient_begin + i], value = values[point.begin + i];
      gradient_norm += g * g;
      norm += value * value;
    }
    gradient_norm = std::sqrt(gradient_norm);
    // The function ends in sums of fp32; a derivative that is lost in their rounding says nothing.
    if (gradient_norm < 1e-4) continue;
    const double step = 0.01 * std::sqrt(norm);
    for (int side : {0, 1}) {
      std::vector<float> moved = values;
      const double scale = (side == 0 ? step : -step) / gradient_norm;
      for (size_t i = 0; i < point.count; ++i) {
        moved[point.begin + i] = static_cast<float>(values[point.begin + i] +
                                                    scale * gradient[point.gradient_begin + i]);
      }
      point.values->Write(moved);
      sums[side] = Value();
    }
    point.values->Write(values);
    EXPECT_NEAR((sums[0] - sums[1]) / (2 * step * gradient_norm), 1.0, 0.02)
        << point.name << " of layer " << layer_ << ", gradient " << gradient_norm;
  }
}

void LayerHarness::KeptEqualsRecomputed() {
  Backward(worker::DeviceAddress(), /*add=*/false);
  const auto expected = Gradients();
  Value();
  std::vector<std::vector<float>> outputs;
  for (const auto& output : outputs_) outputs.push_back(output->Read());

  constexpr int64_t kGuard = 64;
  const Bytes kept = layer().KeptBytes(samples_);
  EXPECT_EQ(kept.count() % kSlotAlignment, 0);
  const auto place = Noise((kept.count() + kGuard) / kFloat, 1.0f);
  const std::vector<float> before = place->Read();
  const worker::DeviceAddress address =
      kept > Bytes() ? place->block->address() : worker::DeviceAddress();
  {
    const auto saved = layer().NewSaved(samples_, address);
    EXPECT_EQ(layer().Forward(Call(samples_, samples_), TensorsOf(layer_, samples_, inputs_),
                              TensorsOf(layer_ + 1, samples_, outputs_), saved.get()),
              absl::OkStatus());
  }
  for (size_t i = 0; i < outputs_.size(); ++i) EXPECT_EQ(outputs_[i]->Read(), outputs[i]) << i;
  Backward(address, /*add=*/false);
  EXPECT_EQ(Gradients(), expected) << "layer " << layer_;
  const std::vector<float> after = place->Read();
  EXPECT_EQ(0, std::memcmp(after.data() + kept.count() / kFloat,
                           before.data() + kept.count() / kFloat, kGuard));
}

void LayerHarness::GradientsAccumulate() {
  Backward(worker::DeviceAddress(), /*add=*/false);
  const auto once = Gradients();
  Backward(worker::DeviceAddress(), /*add=*/true);
  const auto twice = Gradients();
  for (size_t g = 0; g < once.size(); ++g) {
    const float factor = g < gradients_.size() ? 2 : 1;  // those of inputs are set
    for (size_t i = 0; i < once[g].size(); ++i) {
      const float expected = factor * once[g][i];
      ASSERT_NEAR(twice[g][i], expected, 1e-5 + 1e-4 * std::abs(expected)) << g << ", " << i;
    }
  }
}

void LayerHarness::AgreesWith(LayerCase& other) {
  const auto compute = [&] {
    std::vector<std::vector<float>> all = {{static_cast<float>(Value())}};
    for (const auto& output : outputs_) all.push_back(output->Read());
    Backward(worker::DeviceAddress(), /*add=*/false);
    for (std::vector<float>& gradient : Gradients()) all.push_back(std::move(gradient));
    return all;
  };
  const auto got = compute();
  std::swap(subject_.layers, other.layers);
  const auto expected = compute();
  std::swap(subject_.layers, other.layers);
  for (size_t i = 0; i < expected.size(); ++i) {
    double norm = 0;
    for (float value : expected[i]) norm += static_cast<double>(value) * value;
    const double scale =
        std::sqrt(norm / static_cast<double>(std::max<size_t>(1, expected[i].size())));
    for (size_t k = 0; k < expected[i].size(); ++k) {
      ASSERT_NEAR(got[i][k], expected[i][k], 1e-5 * scale + 1e-5 * std::abs(expected[i][k]) + 1e-7)
          << "layer " << layer_ << ", tensor " << i << ", number " << k;
    }
  }
}

void LayerHarness::SeveralMicrobatchesEqualOneByOne() {
  // Elsewhere no such task is made: a library's products may depend on where a microbatch begins.
  if (!layer().TakesSeveralMicrobatches()) return;
  if (!model::BoundariesSplit(subject_.model, samples_)) return;
  constexpr int64_t kMicrobatches = 3;
  const int64_t all = kMicrobatches * samples_;
  const Buffers inputs = Boundary(layer_, all, 1.0f), outputs = Boundary(layer_ + 1, all, 0);
  EXPECT_EQ(layer().Forward(Call(all, samples_), TensorsOf(layer_, all, inputs),
                            TensorsOf(layer_ + 1, all, outputs), nullptr),
            absl::OkStatus());
  const Buffers alone = Boundary(layer_ + 1, all, 0);
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    const auto part = [&](const worker::DeviceTensor& tensor) {
      worker::DeviceTensor one = tensor;
      one.shape[0] = samples_;
      one.address = one.address + SizeOf(one.dtype) * (m * one.elements());
      return one;
    };
    const auto parts = [&](const std::vector<worker::DeviceTensor>& tensors) {
      std::vector<worker::DeviceTensor> result;
      for (const worker::DeviceTensor& tensor : tensors) result.push_back(part(tensor));
      return result;
    };
    worker::LayerCall call = Call(samples_, samples_);
    const std::vector<worker::DeviceTensor> batch = parts(batch_);
    call.batch = batch;
    EXPECT_EQ(layer().Forward(call, parts(TensorsOf(layer_, all, inputs)),
                              parts(TensorsOf(layer_ + 1, all, alone)), nullptr),
              absl::OkStatus());
  }
  EXPECT_EQ(subject_.device->Synchronize().value_or(0), -1);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i]->Read(), alone[i]->Read()) << "layer " << layer_;
  }
}

}  // namespace harmony::testing_support
