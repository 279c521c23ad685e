#include "tests/unit/worker/graphs/exported_step.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "worker/device/cpu_memory.h"
#include "worker/graphs/tensors.h"

namespace harmony::worker {

Buffer::Buffer(Bytes size)
    : size_(size.AlignUp(kSlotAlignment) + Bytes(kSlotAlignment)),
      data_(std::aligned_alloc(kSlotAlignment, static_cast<size_t>(size_.count())), &std::free) {
  std::memset(data_.get(), 0, static_cast<size_t>(size_.count()));
}

DeviceAddress Buffer::address() const { return AddressOf(data_.get()); }

ExportedStep::ExportedStep(const ExportedFixture& fixture, ComputeDevice& device)
    : fixture_(fixture), model_(model::BuildModelSpec(fixture.exported)), device_(device) {
  for (const model::ParamBlock& block : model_.blocks) weights_.emplace_back(block.weight_bytes);
  for (const model::ParameterReference& reference : model_.references) {
    gradients_.emplace_back(model_.blocks[reference.block].accumulator_bytes);
  }
  for (const char* name : {"table", "scale", "mean", "weight", "head"}) {
    at::Tensor weight = Weight(name);
    weight.copy_(at::linspace(-0.7, 0.9, weight.numel()).view(weight.sizes()));
  }
  constexpr int64_t kNumbers = kSamples * kTokens;
  for (int64_t i = 0; i < kMicrobatches; ++i) {
    std::vector<Buffer>& inputs = inputs_.emplace_back();
    for (const int64_t below : {kIds, kClasses}) {
      inputs.emplace_back(Bytes(kNumbers * 4));
      for (int64_t k = 0; k < kNumbers; ++k) {
        inputs.back().data<int32_t>()[k] = static_cast<int32_t>(7 * (kNumbers * i + k) % below);
      }
    }
    losses_.emplace_back(Bytes(sizeof(command::LossSlot)));
  }
}

at::Tensor ExportedStep::View(const Buffer& block, const model::TensorSpec& tensor,
                              const model::StoredAs& form) const {
  return TensorOver(block.address() + form.offset, form.dtype, tensor.shape, at::kCPU);
}

at::Tensor ExportedStep::Weight(const std::string& name) const {
  for (size_t i = 0; i < model_.blocks.size(); ++i) {
    for (const model::TensorSpec& tensor : model_.blocks[i].tensors) {
      if (tensor.name == name) return View(weights_[i], tensor, tensor.weight);
    }
  }
  ADD_FAILURE() << name;
  return at::Tensor();
}

at::Tensor ExportedStep::Gradient(const std::string& name) const {
  at::Tensor sum;
  for (size_t r = 0; r < model_.references.size(); ++r) {
    for (const model::TensorSpec& tensor : model_.blocks[model_.references[r].block].tensors) {
      if (tensor.name != name) continue;
      const at::Tensor part = View(gradients_[r], tensor, tensor.accumulator);
      sum = sum.defined() ? sum + part : part.clone();
    }
  }
  return sum;
}

at::Tensor ExportedStep::Input(int input, int64_t microbatch) const {
  return TensorOver(inputs_[microbatch][input].address(), DType::kI32, {kSamples, kTokens},
                    at::kCPU)
      .to(at::kLong);
}

double ExportedStep::LossSum() const {
  double sum = 0;
  for (const Buffer& loss : losses_) sum += loss.data<command::LossSlot>()->loss_sum;
  return sum;
}

int64_t ExportedStep::LabelCount() const {
  int64_t count = 0;
  for (const Buffer& loss : losses_) count += loss.data<command::LossSlot>()->label_count;
  return count;
}

std::vector<std::string> ExportedStep::Bits() const {
  std::vector<std::string> bits;
  for (const Buffer& gradient : gradients_) bits.push_back(gradient.bytes());
  for (const Buffer& loss : losses_) bits.push_back(loss.bytes());
  return bits;
}

absl::Status ExportedStep::Run(const std::vector<model::LayerRange>& groups, bool keep) {
  HARMONY_ASSIGN_OR_RETURN(LayerChain layers, fixture_.MakeLayers());
  LayerRunner runner(model_, std::move(layers), device_);
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    HARMONY_RETURN_IF_ERROR(Microbatch(runner, groups, keep, m));
  }
  return absl::OkStatus();
}

GroupBinding ExportedStep::Bind(model::LayerRange group, int64_t microbatch, bool gradients) const {
  GroupBinding binding;
  binding.layers = group;
  binding.samples = kSamples;
  for (size_t r = 0; r < model_.references.size(); ++r) {
    const model::ParameterReference& reference = model_.references[r];
    if (!group.contains(reference.layer)) continue;
    binding.references.push_back({static_cast<int>(r), weights_[reference.block].address(),
                                  gradients ? gradients_[r].address() : DeviceAddress()});
  }
  for (const Buffer& input : inputs_[microbatch]) binding.batch.push_back(input.address());
  binding.loss = {losses_[microbatch].address(), kMicrobatches * kSamples * kTokens};
  binding.first_microbatch = microbatch == 0;
  binding.last_microbatch = binding.stores_gradients = microbatch + 1 == kMicrobatches;
  return binding;
}

absl::Status ExportedStep::Microbatch(LayerRunner& runner,
                                      const std::vector<model::LayerRange>& groups, bool keep,
                                      int64_t microbatch) const {
  std::vector<Buffer> values, gradients, kept;  // by boundary; by group
  for (int b = 0; b <= model_.num_layers(); ++b) {
    values.emplace_back(model::BoundaryBytes(model_, b, kSamples));
    gradients.emplace_back(model::BoundaryGradientBytes(model_, b, kSamples));
  }
  for (const model::LayerRange& group : groups) {
    kept.emplace_back(model::KeptActivationBytes(model_, group, kSamples));
    GroupBinding binding = Bind(group, microbatch, group == groups.back());
    binding.input = values[group.first].address();
    if (group == groups.back()) {
      binding.input_gradient = gradients[group.first].address();
      HARMONY_RETURN_IF_ERROR(runner.RunForwardBackward(binding));
      break;
    }
    if (keep) binding.kept = kept.back().address();
    if (group.first == 0 && group.last > 0) binding.outputs.push_back({1, values[1].address()});
    binding.outputs.push_back({group.last + 1, values[group.last + 1].address()});
    HARMONY_RETURN_IF_ERROR(runner.RunForward(binding));
  }
  for (size_t i = groups.size() - 1; i-- > 0;) {
    const model::LayerRange group = groups[i];
    GroupBinding binding = Bind(group, microbatch, true);
    binding.input = values[group.first == 0 ? 1 : group.first].address();
    binding.output_gradient = gradients[group.last + 1].address();
    binding.input_gradient = gradients[group.first].address();
    if (keep) binding.kept = kept[i].address();
    HARMONY_RETURN_IF_ERROR(runner.RunBackward(binding));
  }
  return absl::OkStatus();
}

}  // namespace harmony::worker
