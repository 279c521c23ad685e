#include "worker/profile/layer_profiler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/float_convert.h"
#include "common/io/hf_directory.h"
#include "common/model/model_sizes.h"
#include "worker/device/compute_device.h"
#include "worker/layers/stored_gradient.h"

namespace harmony::worker {
namespace {

// What a size is expected to take in backward, for it to be measured; beyond, times grow with the
// size.
constexpr double kLongestTask = 1.5;
// A group of two layers is measured while one of them takes less than this.
constexpr double kLongestForPairs = 0.3;
// Of the warm-up, what a quick profile has before each measurement but the first, between which a
// device is idle for some tenths of a second. An H200's clocks were 3.7% above those of training
// then, and 1.6% with whole ones.
constexpr int64_t kShareOfTheFirst = 3;
constexpr Bytes kLeastWorkspace = KiB(64);
// That are made and written to a device at a time; a longer tensor has them again and again, for
// making each takes longer than what is to be measured.
constexpr int64_t kValuesAtOnce = 1 << 20;
constexpr double kLeastSeconds = 1e-9;  // of a difference of two times

// Cheap noise in [-1, 1): what is measured depends on no value, but must stay finite and normal.
class Noise {
 public:
  float Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }
  int32_t Below(int64_t bound) {
    Next();
    return static_cast<int32_t>((state_ >> 16) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_ = 88172645463325252u;
};

profile::Measured Minus(const profile::Measured& a, double b) {
  return {std::max(a.median - b, kLeastSeconds), std::max(a.least - b, kLeastSeconds),
          std::max(a.most - b, kLeastSeconds)};
}
profile::Measured Times(const profile::Measured& a, double factor) {
  return {a.median * factor, a.least * factor, a.most * factor};
}

}  // namespace

// Gives the bindings of a task their places, one behind the other, and fills them.
class LayerProfiler::Binder {
 public:
  // `weights`: of the model's directory; null where it has none.
  Binder(const runtime::AttachedJob& job, const Task& task, const io::CheckpointReader* weights)
      : model_(job.model), task_(task), samples_(task.samples), weights_(weights) {}

  // The places only. ResourceExhausted when they do not fit so much memory.
  absl::Status Bind(Bytes memory, command::ComputeTask& compute) {
    Place(compute);
    if (next_ + kLeastWorkspace > memory) {
      return absl::ResourceExhaustedError(
          absl::StrCat("weights, gradients and boundary tensors need ", FormatBytesExact(next_),
                       " of ", FormatBytesExact(memory)));
    }
    return absl::OkStatus();
  }
  // Writes what lies there, after Bind.
  absl::Status Fill(ComputeDevice& device) {
    device_ = &device;
    next_ = Bytes();
    command::ComputeTask same;
    Place(same);
    return written_;
  }
  Bytes end() const { return next_; }

 private:
  void Place(command::ComputeTask& compute) {
    const Task& task = task_;
    compute = command::ComputeTask();
    compute.kind = task.kind;
    compute.layers = task.layers;
    compute.samples = task.samples;
    compute.total_labels = samples_ * model_.labels_per_sample;
    const bool forward = task.kind == command::TaskKind::kForward;
    const bool backward = task.kind == command::TaskKind::kBackward;
    const bool first = task.layers.first == 0;
    const int behind = task.layers.last + 1;
    const auto hidden = [&](int boundary, float scale) {
      return Boundary(boundary, /*gradients=*/false, scale);
    };
    const auto gradient = [&](int boundary, float scale) {
      return Boundary(boundary, /*gradients=*/true, scale);
    };
    for (int reference : plan::ReferencesOf(model_, task.layers)) {
      const model::ParamBlock& block = model_.blocks[model_.references[reference].block];
      if (!backward || task.with_forward || model_.references[reference].needed_in_backward) {
        compute.weights.push_back({reference, Weights(block)});
      }
      if (!forward) compute.gradients.push_back({reference, Zeros(block.accumulator_bytes)});
    }
    for (int input : model::InputsOf(model_, task.layers)) {
      compute.inputs.push_back({input, Input(model_.inputs[input])});
    }
    if (task.layers.last > 0 && !(first && !backward)) {
      compute.input = hidden(std::max(task.layers.first, 1), 1);
    }
    if (task.kept) compute.kept = Zeros(model::KeptActivationBytes(model_, task.layers, samples_));
    if (forward) compute.outputs.push_back({behind, hidden(behind, 0)});
    if (backward) {
      // What a forward leaves there is as good a gradient as any.
      const Bytes at = next_;
      if (task.with_forward) compute.outputs.push_back({behind, hidden(behind, 0)});
      const Bytes end = std::exchange(next_, at);
      compute.output_gradient = gradient(behind, 1e-3f);
      next_ = std::max(next_, end);
    }
    if (!forward && !first) compute.input_gradient = gradient(task.layers.first, 0);
    if (task.kind == command::TaskKind::kForwardBackward)
      compute.loss = Take(Bytes(sizeof(command::LossSlot)));
  }

  Bytes Take(Bytes size) {
    const Bytes at = next_;
    next_ = (next_ + size).AlignUp(kSlotAlignment);
    return at;
  }
  // Writes so many values, which `next` makes, unless only places are wanted.
  template <typename T, typename Next>
  void Write(Bytes offset, int64_t count, Next next) {
    if (device_ == nullptr) return;
    std::vector<T> values(static_cast<size_t>(std::min(count, kValuesAtOnce)));
    for (T& value : values) value = next();
    for (int64_t done = 0; done < count && written_.ok(); done += std::ssize(values)) {
      const std::span<const T> part(values.data(),
                                    static_cast<size_t>(std::min(count - done, kValuesAtOnce)));
      const DeviceAddress to =
          device_->resident() + offset + Bytes(done * static_cast<int64_t>(sizeof(T)));
      written_ = device_->Write(to, std::as_bytes(part));
    }
  }
  Bytes Zeros(Bytes size) {
    const Bytes at = Take(size);
    Zero(at, size);
    return at;
  }
  void Zero(Bytes at, Bytes size) {
    if (device_ != nullptr) device_->Zero(device_->resident() + at, size);
  }
  // Of a type without such values: zeros.
  template <typename Next>
  void Values(DType dtype, Bytes at, int64_t count, const Next& next) {
    if (dtype == DType::kF32) {
      Write<float>(at, count, next);
    } else if (dtype == DType::kBF16) {
      Write<uint16_t>(at, count, [&] { return io::Bf16FromFloat(next()); });
    } else {
      Zero(at, SizeOf(dtype) * count);
    }
  }
  // The tensors of a boundary, or the gradients of those that have one.
  Bytes Boundary(int boundary, bool gradients, float scale) {
    const Bytes begin = next_;
    for (const model::SampleTensor& tensor : model_.boundaries[boundary]) {
      if (gradients && !IsFloatingPoint(tensor.dtype)) continue;
      const Bytes size = model::TimesSaturated(tensor.per_sample(), samples_);
      Values(tensor.dtype, Take(size), size.count() / SizeOf(tensor.dtype).count(),
             [&] { return scale * noise_.Next(); });
    }
    return begin;
  }
  Bytes Weights(const model::ParamBlock& block) {
    const Bytes begin = Take(block.weight_bytes);
    for (const model::TensorSpec& tensor : block.tensors) {
      const Bytes at = begin + tensor.weight.offset;
      if (tensor.role != model::TensorRole::kTrained) {
        Constant(tensor, at);
      } else if (tensor.init == model::InitKind::kOnes) {
        Values(tensor.weight.dtype, at, tensor.elements, [] { return 1.0f; });
      } else {
        Values(tensor.weight.dtype, at, tensor.elements, [&] { return 0.02f * noise_.Next(); });
      }
    }
    return begin;
  }
  // Masks, tables and indices mean something: they are what the model's directory says.
  void Constant(const model::TensorSpec& tensor, Bytes offset) {
    if (device_ == nullptr || !written_.ok()) return;
    const Bytes size = SizeOf(tensor.weight.dtype) * tensor.elements;
    std::vector<std::byte> values(static_cast<size_t>(size.count()));
    if (weights_ != nullptr) {
      written_ = weights_->Read(tensor.name, tensor.weight.dtype, absl::MakeSpan(values));
      if (!written_.ok()) return;
    }
    written_ = device_->Write(device_->resident() + offset, values);
  }
  Bytes Input(const model::BatchInput& input) {
    const Bytes size = model::TimesSaturated(input.tensor.per_sample(), samples_);
    const int64_t count = size.count() / SizeOf(input.tensor.dtype).count();
    const Bytes at = Take(size);
    if (input.source == model::InputSource::kLabelCounts) {
      bool of_batch = false;
      Write<int64_t>(at, count, [&] {
        of_batch = !of_batch;
        return model_.labels_per_sample * (of_batch ? 1 : samples_);
      });
      return at;
    }
    const auto below = [&] { return noise_.Below(std::max<int64_t>(input.values_below, 1)); };
    switch (input.tensor.dtype) {
      case DType::kF32:
        Write<float>(at, count, [&] { return noise_.Next(); });
        break;
      case DType::kI32:
        Write<int32_t>(at, count, below);
        break;
      case DType::kI64:
        Write<int64_t>(at, count, [&] { return int64_t{below()}; });
        break;
      default:
        Zero(at, size);
        break;
    }
    return at;
  }

  const model::ModelSpec& model_;
  const Task& task_;
  const int64_t samples_;
  const io::CheckpointReader* const weights_;
  Bytes next_;
  ComputeDevice* device_ = nullptr;  // null: nothing is written
  absl::Status written_;
  Noise noise_;
};

absl::StatusOr<LayerProfiler> LayerProfiler::Create(const plan::DeviceSpec& device,
                                                    std::unique_ptr<DeviceBackend> backend,
                                                    const runtime::ProfileCall& call) {
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWorker> worker,
                           DeviceWorker::Create(device, std::move(backend)));
  LayerProfiler profiler(device, std::move(worker), call);
  if (std::holds_alternative<model::ExportedModel>(call.architecture)) {
    HARMONY_ASSIGN_OR_RETURN(const io::ModelSource source,
                             io::OpenModelSource(call.job.model_name_or_path));
    HARMONY_ASSIGN_OR_RETURN(profiler.weights_, io::OpenWeights(source));
  }
  return profiler;
}

LayerProfiler::LayerProfiler(const plan::DeviceSpec& device, std::unique_ptr<DeviceWorker> worker,
                             const runtime::ProfileCall& call)
    : device_(device), worker_(std::move(worker)) {
  job_.id = "profile";
  job_.spec = call.job;
  job_.model = call.model;
  job_.architecture = call.architecture;
  job_.plan.sequence_length = call.job.sequence_length;
  job_.plan.devices.resize(static_cast<size_t>(device.ordinal) + 1);
  is_quick_ = call.request.quick;
  if (is_quick_) {
    limits_ = runtime::kQuickRepeats;
    sizes_ = {profile::QuickSize(call.job)};
  } else {
    sizes_ = profile::ProfiledSizes(call.job);
  }
}

absl::Status LayerProfiler::Prepare(const Task& task) {
  Binder binder(job_, task, weights_.has_value() ? &*weights_ : nullptr);
  command::ComputeTask compute;
  HARMONY_RETURN_IF_ERROR(binder.Bind(device_.usable(), compute));
  command_ = command::Command();
  command_.header.lane =
      static_cast<uint32_t>(command::LaneTable(device_.ordinal + 1)
                                .IndexOf({command::LaneKind::kCompute, device_.ordinal}));
  command_.body = std::move(compute);
  forward_.reset();
  if (task.with_forward) {
    forward_ = command_;
    auto& forward = std::get<command::ComputeTask>(forward_->body);
    forward.kind = command::TaskKind::kForward;
    forward.gradients.clear();
    forward.input_gradient.reset();
    forward.output_gradient.reset();
    std::get<command::ComputeTask>(command_.body).outputs.clear();
  }
  job_.plan.microbatch_size = task.samples;
  job_.plan.devices.back() = {device_.usable(), binder.end()};
  HARMONY_RETURN_IF_ERROR(worker_->SetUpJob(job_));
  return binder.Fill(*worker_->device());
}

absl::Status LayerProfiler::PrepareLayer(int layer, int64_t samples, bool with_forward) {
  const bool fused = profile::RunsFused(job_.model, layer);
  return Prepare(
      {.kind = fused ? command::TaskKind::kForwardBackward : command::TaskKind::kBackward,
       .layers = {layer, layer},
       .samples = samples,
       .with_forward = with_forward && !fused});
}

absl::Status LayerProfiler::RunOnce() {
  if (forward_) HARMONY_RETURN_IF_ERROR(worker_->Run(*forward_));
  return worker_->Run(command_);
}

absl::StatusOr<profile::Measured> LayerProfiler::Repeat(runtime::RepeatLimits limits,
                                                        const std::function<absl::Status()>& work) {
  limits.warm_up = worker_->device()->warm_up();
  if (is_quick_ && is_warm_) limits.warm_up = Nanos(limits.warm_up.count() / kShareOfTheFirst);
  is_warm_ = true;
  HARMONY_ASSIGN_OR_RETURN(std::vector<double> seconds, runtime::TimeRepeats(limits, work));
  return profile::MeasuredOf(seconds);
}

absl::StatusOr<LayerProfiler::Timing> LayerProfiler::Time(const Task& task) {
  HARMONY_RETURN_IF_ERROR(Prepare(task));
  HARMONY_ASSIGN_OR_RETURN(const profile::Measured seconds,
                           Repeat(limits_, [this] { return RunOnce(); }));
  return Timing{seconds, worker_->stats().workspace_peak};
}

absl::StatusOr<std::vector<profile::LayerProfile>> LayerProfiler::MeasureAll() {
  std::vector<profile::LayerProfile> layers;
  for (const profile::LayerShape& shape : profile::DistinctLayers(job_.model)) {
    HARMONY_ASSIGN_OR_RETURN(layers.emplace_back(), MeasureShape(shape));
  }
  return layers;
}

absl::StatusOr<profile::LayerProfile> LayerProfiler::MeasureShape(
    const profile::LayerShape& shape) {
  const int index = shape.layers.front();
  profile::LayerProfile layer;
  layer.kind = shape.name;
  layer.layers = shape.layers;
  layer.parameter_bytes = model::LayerParameterBytes(job_.model, index);
  layer.input_bytes = model::LayerInputBytes(job_.model, index, 1);
  absl::Status no_room;
  for (int64_t samples : sizes_) {
    const profile::LayerSizeProfile* smaller = layer.sizes.empty() ? nullptr : &layer.sizes.back();
    if (smaller != nullptr && smaller->backward.median / static_cast<double>(smaller->samples) *
                                      static_cast<double>(samples) >
                                  kLongestTask) {
      break;
    }
    absl::StatusOr<profile::LayerSizeProfile> size = MeasureSize(shape, samples, smaller);
    if (absl::IsResourceExhausted(size.status())) {
      no_room = size.status();
      break;
    }
    HARMONY_RETURN_IF_ERROR(size.status());
    layer.sizes.push_back(*std::move(size));
  }
  if (layer.sizes.empty()) {
    return WithContext(no_room,
                       absl::StrCat("layer ", index, " (", layer.kind, ") does not fit ",
                                    ToString(device_), " with micro_batch_size ", sizes_.front()));
  }
  HARMONY_RETURN_IF_ERROR(MeasureGradients(layer));
  return layer;
}

absl::StatusOr<profile::LayerSizeProfile> LayerProfiler::MeasureSize(
    const profile::LayerShape& shape, int64_t samples, const profile::LayerSizeProfile* smaller) {
  const model::LayerRange one{shape.layers.front(), shape.layers.front()};
  profile::LayerSizeProfile size;
  size.samples = samples;
  const bool fused = profile::RunsFused(job_.model, one.first);
  if (!fused) {
    HARMONY_ASSIGN_OR_RETURN(const Timing forward,
                             Time({command::TaskKind::kForward, one, samples}));
    size.forward = forward.seconds;
    size.forward_workspace = forward.workspace;
  }
  const command::TaskKind kind =
      fused ? command::TaskKind::kForwardBackward : command::TaskKind::kBackward;
  HARMONY_ASSIGN_OR_RETURN(const Timing backward, Time({kind, one, samples}));
  size.backward = backward.seconds;
  size.backward_workspace = backward.workspace;
  if (profile::Recomputes(job_.model, one.first)) {
    HARMONY_RETURN_IF_ERROR(MeasureInner(shape, smaller, size));
    profile::NoteRecompute(job_.model, one.first, size);
    if (size.kept_backward) return size;
    absl::Status kept = MeasureKept(one, size);
    if (!kept.ok() && !absl::IsResourceExhausted(kept)) return kept;
  }
  return size;
}

absl::Status LayerProfiler::MeasureInner(const profile::LayerShape& shape,
                                         const profile::LayerSizeProfile* smaller,
                                         profile::LayerSizeProfile& size) {
  const int first = shape.layers.front();
  const bool pair = shape.layers.size() > 1 && shape.layers[1] == first + 1;
  if (pair && (smaller == nullptr || size.backward.median < kLongestForPairs)) {
    const absl::StatusOr<Timing> both =
        Time({command::TaskKind::kBackward, {first, first + 1}, size.samples});
    if (both.ok()) {
      size.backward_inner = Minus(both->seconds, size.backward.median);
      size.activation_bytes = std::max(both->workspace - size.backward_workspace, Bytes());
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(both.status())) return both.status();
  }
  // As at the smaller size, or as the shapes say.
  if (smaller != nullptr && smaller->backward_inner.has_value()) {
    size.backward_inner =
        Times(*smaller->backward_inner, size.backward.median / smaller->backward.median);
    size.activation_bytes =
        Bytes(smaller->activation_bytes.count() / smaller->samples * size.samples);
  } else {
    size.activation_bytes =
        model::TimesSaturated(job_.model.cost_of(first).saved_per_sample, size.samples) +
        model::BoundaryBytes(job_.model, first, size.samples) * 2;
  }
  return absl::OkStatus();
}

// In turn, for a backward destroys what the forward kept; the difference is the backward's time.
absl::Status LayerProfiler::MeasureKept(model::LayerRange block, profile::LayerSizeProfile& size) {
  HARMONY_RETURN_IF_ERROR(Prepare({.kind = command::TaskKind::kBackward,
                                   .layers = block,
                                   .samples = size.samples,
                                   .kept = true,
                                   .with_forward = true}));
  HARMONY_ASSIGN_OR_RETURN(size.keeping_forward,
                           Repeat(limits_, [this] { return worker_->Run(*forward_); }));
  HARMONY_ASSIGN_OR_RETURN(const profile::Measured both,
                           Repeat(limits_, [this] { return RunOnce(); }));
  size.kept_backward = Minus(both, size.keeping_forward->median);
  return absl::OkStatus();
}

absl::Status LayerProfiler::MeasureGradients(profile::LayerProfile& layer) {
  if (device_.paced()) return absl::OkStatus();  // within the modelled time of a task
  HARMONY_RETURN_IF_ERROR(PrepareLayer(layer.layers.front(), layer.sizes.front().samples,
                                       /*with_forward=*/false));
  HARMONY_RETURN_IF_ERROR(RunOnce());  // readies the thread
  ComputeDevice& device = *worker_->device();
  // Without a warm-up: this moves memory, and computes next to nothing.
  const auto time = [&](auto&& work) -> absl::StatusOr<profile::Measured> {
    const auto repeat = [&]() -> absl::Status {
      for (const command::WeightBinding& bound :
           std::get<command::ComputeTask>(command_.body).gradients) {
        work(device.resident() + bound.offset,
             job_.model.blocks[job_.model.references[bound.reference].block]);
      }
      return device.Synchronize().status();
    };
    HARMONY_ASSIGN_OR_RETURN(std::vector<double> seconds, runtime::TimeRepeats(limits_, repeat));
    return profile::MeasuredOf(seconds);
  };
  HARMONY_ASSIGN_OR_RETURN(layer.zero,
                           time([&](DeviceAddress gradient, const model::ParamBlock& block) {
                             device.Zero(gradient, block.accumulator_bytes);
                           }));
  HARMONY_ASSIGN_OR_RETURN(
      layer.check, time([&](DeviceAddress gradient, const model::ParamBlock& block) {
        for (const DeviceTensor& tensor : StoreGradient(device, block, gradient)) {
          device.CheckFinite(tensor, 0);
        }
      }));
  return absl::OkStatus();
}

}  // namespace harmony::worker
