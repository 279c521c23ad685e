#include "bench/virtual_trainer/device_tasks.h"

#include <cstring>

#include "bench/virtual_trainer/thread_workspace.h"
#include "common/base/status.h"
#include "common/job/job_spec.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "tests/support/update_block.h"
#include "worker/models/builtin_layers.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::bench {

using baselines::kNoTensor;
using baselines::Tensor;
using baselines::Work;

int TaskTensors::Find(Tensor tensor) const {
  for (size_t i = 0; tensor != kNoTensor && i < action_.uses.size(); ++i) {
    if (action_.uses[i].tensor == tensor) return static_cast<int>(i);
  }
  return -1;
}

absl::StatusOr<std::unique_ptr<DeviceTasks>> DeviceTasks::Create(
    const model::ModelConfig& config, int64_t padding_token, const baselines::LayerCosts& costs) {
  worker::CpuDevice::Options options;
  options.compute_threads = 1;
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<worker::CpuDevice> device,
                           worker::CpuDevice::Create(options));
  worker::LayerChain layers = worker::MakeBuiltinLayers(
      costs.model(),
      {.config = config, .tokens = costs.job().sequence_length, .padding_token = padding_token},
      *device);
  return std::unique_ptr<DeviceTasks>(new DeviceTasks(costs, std::move(device), std::move(layers)));
}

DeviceTasks::DeviceTasks(const baselines::LayerCosts& costs,
                         std::unique_ptr<worker::CpuDevice> device, worker::LayerChain layers)
    : costs_(costs),
      model_(costs.model()),
      device_(std::move(device)),
      runner_(model_, std::move(layers), *device_) {}

worker::GroupBinding DeviceTasks::Bind(const Work& work, const TaskTensors& tensors) const {
  worker::GroupBinding b;
  b.layers = {work.layer, work.layer};
  b.samples = costs_.microbatch();
  const model::LayerSpec& layer = model_.layers[static_cast<size_t>(work.layer)];
  for (size_t i = 0; i < layer.references.size(); ++i) {
    worker::ReferenceBinding reference{layer.references[i], tensors.address(work.weights[i]), {}};
    if (work.kind == Work::Kind::kBackward) {
      reference.gradients = tensors.address(work.gradients[i]);
    }
    b.references.push_back(reference);
  }
  b.input = tensors.address(work.input);
  b.output_gradient = tensors.address(work.output_gradient);
  b.batch.resize(model_.inputs.size());
  for (int input : model::InputsOf(model_, b.layers)) {
    b.batch[static_cast<size_t>(input)] = tensors.address(work.batch);
  }
  const bool keeps = model_.cost_of(work.layer).recompute == model::Recompute::kUnlessKept;
  if (keeps) b.kept = tensors.address(work.saved);
  return b;
}

void DeviceTasks::ZeroGradients(const Work& work, const TaskTensors& tensors) const {
  const auto& references = model_.layers[static_cast<size_t>(work.layer)].references;
  for (size_t i = 0; i < references.size(); ++i) {
    if (!tensors.made(work.gradients[i])) continue;
    const int block = model_.references[static_cast<size_t>(references[i])].block;
    worker::ZeroBytes(tensors.data(work.gradients[i]),
                      model_.blocks[static_cast<size_t>(block)].accumulator_bytes.count());
  }
}

absl::StatusOr<absl::Span<const std::byte>> DeviceTasks::RunLayer(const Work& work,
                                                                  const TaskTensors& tensors,
                                                                  const worker::LossBinding& loss) {
  const bool forward = work.kind == Work::Kind::kForward;
  worker::GroupBinding b = Bind(work, tensors);
  const Tensor made = forward ? work.output : work.input_gradient;
  const int boundary = forward ? work.layer + 1 : work.layer;
  absl::Span<std::byte> scratch = tensors.scratch();
  worker::DeviceAddress result = tensors.address(made);
  absl::Span<const std::byte> leaves;
  if (made == kNoTensor) {
    const auto size = static_cast<size_t>(costs_.Boundary(boundary).count());
    leaves = scratch.first(size);
    if (size > 0) result = worker::AddressOf(scratch.data());
    scratch.remove_prefix(size);
  }
  if (!forward) ZeroGradients(work, tensors);
  const ThreadWorkspace workspace(scratch);
  absl::Status status;
  if (forward) {
    b.outputs.push_back({boundary, result});
    status = runner_.RunForward(b);
  } else if (work.layer + 1 == model_.num_layers()) {
    b.input_gradient = result;
    b.loss = loss;
    status = runner_.RunForwardBackward(b);
  } else {
    b.input_gradient = result;
    status = runner_.RunBackward(b);
  }
  HARMONY_RETURN_IF_ERROR(status);
  return leaves;
}

void DeviceTasks::RunUpdate(const Work& work, const TaskTensors& tensors, int step) {
  const model::ParamBlock& block = model_.blocks[static_cast<size_t>(work.block)];
  std::byte* const weights = tensors.data(work.weights[0]);
  if (work.weights_before != kNoTensor) {
    std::memcpy(weights, tensors.data(work.weights_before),
                static_cast<size_t>(block.weight_bytes.count()));
  }
  const int moments = job::MomentsOf(costs_.job());
  std::byte* const state = tensors.data(work.state);
  const auto moment = [&](int number) {
    return number < moments ? reinterpret_cast<float*>(state + number * block.moment_bytes.count())
                            : nullptr;
  };
  const worker::StepHyper hyper{.step = step + 1,
                                .learning_rate = job::LearningRateAt(costs_.job(), step)};
  testing_support::UpdateBlock(block, worker::SettingsOf(costs_.job()), hyper,
                               {.weights = weights, .m = moment(0), .v = moment(1)},
                               {tensors.data(work.gradients[0])}, pool_);
}

Bytes ReducePart(absl::Span<float* const> gradients, size_t own, size_t count) {
  const size_t begin = count * own / gradients.size(), end = count * (own + 1) / gradients.size();
  const size_t size = (end - begin) * sizeof(float);
  Bytes moved;
  const auto part_of = [&](size_t device) {
    if (device != own) moved += Bytes(static_cast<int64_t>(size));
    return gradients[device] + begin;
  };
  const std::vector<float> sum = model::SumTree(
      static_cast<int>(gradients.size()),
      [&](int device) {
        const float* const part = part_of(static_cast<size_t>(device));
        return std::vector<float>(part, part + (end - begin));
      },
      [](const std::vector<float>& a, const std::vector<float>& b) {
        std::vector<float> result(a.size());
        for (size_t i = 0; i < a.size(); ++i) result[i] = a[i] + b[i];
        return result;
      });
  for (size_t device = 0; device < gradients.size(); ++device) {
    std::memcpy(part_of(device), sum.data(), size);
  }
  return moved;
}

}  // namespace harmony::bench
