#include "worker/profile/layer_profiler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/models/kernels.h"

namespace harmony {
namespace {

// What a size is expected to take in backward, for it to be measured; beyond, times grow with the
// size.
constexpr double kLongestTask = 1.5;
// A group of two layers is measured while one of them takes less than this.
constexpr double kLongestForPairs = 0.3;
constexpr Bytes kLeastWorkspace = KiB(64);
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

Measured Minus(const Measured& a, double b) {
  return {std::max(a.median - b, kLeastSeconds), std::max(a.least - b, kLeastSeconds),
          std::max(a.most - b, kLeastSeconds)};
}
Measured Times(const Measured& a, double factor) {
  return {a.median * factor, a.least * factor, a.most * factor};
}

}  // namespace

// Gives the bindings of a task their places, one behind the other, and fills them.
class LayerProfiler::Binder {
 public:
  Binder(const AttachedJob& job, const MappedRegion& memory, const Task& task)
      : model_(job.model), memory_(memory), tokens_(task.samples * job.plan.sequence_length) {
    hidden_ = BoundaryBytes(model_, 1, task.samples, job.plan.sequence_length);
  }

  // ResourceExhausted when they do not fit; nothing is written then.
  absl::Status Bind(const Task& task, ComputeTask& compute) {
    for (bool fill : {false, true}) {
      next_ = Bytes();
      fill_ = fill;
      Place(task, compute);
      if (next_ + kLeastWorkspace > memory_.size()) {
        return absl::ResourceExhaustedError(
            absl::StrCat("weights, gradients and boundary tensors need ", FormatBytesExact(next_),
                         " of ", FormatBytesExact(memory_.size())));
      }
    }
    return absl::OkStatus();
  }
  Bytes end() const { return next_; }

 private:
  void Place(const Task& task, ComputeTask& compute) {
    compute = ComputeTask();
    compute.kind = task.kind;
    compute.layers = task.layers;
    compute.samples = task.samples;
    compute.total_labels = tokens_;
    const bool forward = task.kind == TaskKind::kForward;
    const bool backward = task.kind == TaskKind::kBackward;
    const bool first = task.layers.first == 0;
    for (int use : UsesOf(model_, task.layers)) {
      const ParamBlock& block = model_.blocks[model_.uses[use].block];
      if (!backward || model_.uses[use].needed_in_backward) {
        compute.weights.push_back({use, Weights(block)});
      }
      if (!forward) compute.gradients.push_back({use, Floats(block.size(), 0)});
    }
    if (first) compute.tokens = Ids();
    if (task.layers.last > 0 && !(first && !backward)) compute.input = Floats(hidden_, 1);
    if (task.kept) {
      compute.kept =
          Floats(KeptActivationBytes(model_, task.layers, task.samples, tokens_ / task.samples), 0);
    }
    if (forward) compute.outputs.push_back({task.layers.last + 1, Floats(hidden_, 0)});
    if (backward) compute.output_gradient = Floats(hidden_, 1e-3f);
    if (!forward && !first) compute.input_gradient = Floats(hidden_, 0);
    if (task.kind == TaskKind::kForwardBackward) {
      compute.labels = Ids();
      compute.loss = Take(Bytes(sizeof(LossSlot)));
    }
  }

  Bytes Take(Bytes size) {
    const Bytes at = next_;
    next_ = (next_ + size).AlignUp(kSlotAlignment);
    return at;
  }
  template <typename T>
  T* At(Bytes offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset.count());
  }
  Bytes Floats(Bytes size, float scale) {
    const Bytes at = Take(size);
    if (!fill_) return at;
    float* data = At<float>(at);
    for (int64_t i = 0; i < size.count() / 4; ++i) data[i] = scale * noise_.Next();
    return at;
  }
  Bytes Weights(const ParamBlock& block) {
    const Bytes at = Floats(block.size(), 0.02f);
    for (const TensorSpec& tensor : block.tensors) {
      if (!fill_ || tensor.init != InitKind::kOnes) continue;
      std::fill_n(At<float>(at) + tensor.offset, tensor.elements, 1.0f);
    }
    return at;
  }
  Bytes Ids() {
    const Bytes at = Take(Bytes(tokens_ * 4));
    for (int64_t i = 0; fill_ && i < tokens_; ++i) {
      At<int32_t>(at)[i] = noise_.Below(model_.config.vocab_size);
    }
    return at;
  }

  const ModelSpec& model_;
  const MappedRegion& memory_;
  const int64_t tokens_;
  Bytes hidden_;
  Bytes next_;
  bool fill_ = false;
  Noise noise_;
};

absl::StatusOr<LayerProfiler> LayerProfiler::Create(const DeviceSpec& device, MappedRegion workers,
                                                    MappedRegion ours, const ProfileCall& call) {
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWorker> worker,
                           DeviceWorker::Create(device, std::move(workers)));
  return LayerProfiler(device, std::move(worker), std::move(ours), call);
}

LayerProfiler::LayerProfiler(const DeviceSpec& device, std::unique_ptr<DeviceWorker> worker,
                             MappedRegion ours, const ProfileCall& call)
    : device_(device), worker_(std::move(worker)), memory_(std::move(ours)) {
  job_.id = "profile";
  job_.spec = call.job;
  job_.model = call.model;
  job_.plan.sequence_length = call.job.sequence_length;
  job_.plan.devices.resize(static_cast<size_t>(device.ordinal) + 1);
  if (call.request.quick) {
    limits_ = kQuickRepeats;
    sizes_ = {QuickSize(call.job)};
  } else {
    sizes_ = ProfiledSizes(call.job);
  }
}

absl::Status LayerProfiler::Prepare(const Task& task) {
  Binder binder(job_, memory_, task);
  ComputeTask compute;
  HARMONY_RETURN_IF_ERROR(binder.Bind(task, compute));
  command_ = Command();
  command_.header.lane = static_cast<uint32_t>(
      LaneTable(device_.ordinal + 1).IndexOf({LaneKind::kCompute, device_.ordinal}));
  command_.body = std::move(compute);
  job_.plan.microbatch_size = task.samples;
  job_.plan.devices.back() = {device_.usable(), binder.end()};
  return worker_->SetUpJob(job_);
}

absl::Status LayerProfiler::PrepareBackward(int layer, int64_t samples) {
  const bool head = job_.model.layers[layer].kind == LayerKind::kHead;
  return Prepare(
      {head ? TaskKind::kForwardBackward : TaskKind::kBackward, {layer, layer}, samples});
}

absl::Status LayerProfiler::RunOnce() { return worker_->Run(command_); }

absl::StatusOr<LayerProfiler::Timing> LayerProfiler::Time(const Task& task) {
  HARMONY_RETURN_IF_ERROR(Prepare(task));
  HARMONY_ASSIGN_OR_RETURN(std::vector<double> seconds,
                           TimeRepeats(limits_, [this] { return RunOnce(); }));
  return Timing{MeasuredOf(seconds), worker_->stats().workspace_peak};
}

absl::StatusOr<std::vector<LayerProfile>> LayerProfiler::MeasureAll() {
  std::vector<LayerProfile> layers;
  for (const LayerShape& shape : DistinctLayers(job_.model)) {
    HARMONY_ASSIGN_OR_RETURN(layers.emplace_back(), MeasureShape(shape));
  }
  return layers;
}

absl::StatusOr<LayerProfile> LayerProfiler::MeasureShape(const LayerShape& shape) {
  const int index = shape.layers.front();
  LayerProfile layer;
  layer.kind = KindName(shape.kind);
  layer.layers = shape.layers;
  layer.parameter_bytes = LayerParameterBytes(job_.model, index);
  layer.input_bytes = BoundaryBytes(job_.model, index, 1, job_.plan.sequence_length);
  absl::Status no_room;
  for (int64_t samples : sizes_) {
    const LayerSizeProfile* smaller = layer.sizes.empty() ? nullptr : &layer.sizes.back();
    if (smaller != nullptr && smaller->backward.median / static_cast<double>(smaller->samples) *
                                      static_cast<double>(samples) >
                                  kLongestTask) {
      break;
    }
    absl::StatusOr<LayerSizeProfile> size = MeasureSize(shape, samples, smaller);
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

absl::StatusOr<LayerSizeProfile> LayerProfiler::MeasureSize(const LayerShape& shape,
                                                            int64_t samples,
                                                            const LayerSizeProfile* smaller) {
  const LayerRange one{shape.layers.front(), shape.layers.front()};
  LayerSizeProfile size;
  size.samples = samples;
  if (shape.kind != LayerKind::kHead) {
    HARMONY_ASSIGN_OR_RETURN(const Timing forward, Time({TaskKind::kForward, one, samples}));
    size.forward = forward.seconds;
    size.forward_workspace = forward.workspace;
  }
  const TaskKind kind =
      shape.kind == LayerKind::kHead ? TaskKind::kForwardBackward : TaskKind::kBackward;
  HARMONY_ASSIGN_OR_RETURN(const Timing backward, Time({kind, one, samples}));
  size.backward = backward.seconds;
  size.backward_workspace = backward.workspace;
  if (shape.kind == LayerKind::kBlock) {
    HARMONY_RETURN_IF_ERROR(MeasureInner(shape, smaller, size));
    const absl::Status kept = MeasureKept(one, size);
    if (!kept.ok() && !absl::IsResourceExhausted(kept)) return kept;
  }
  return size;
}

absl::Status LayerProfiler::MeasureInner(const LayerShape& shape, const LayerSizeProfile* smaller,
                                         LayerSizeProfile& size) {
  const int first = shape.layers.front();
  const bool pair = shape.layers.size() > 1 && shape.layers[1] == first + 1;
  if (pair && (smaller == nullptr || size.backward.median < kLongestForPairs)) {
    const absl::StatusOr<Timing> both =
        Time({TaskKind::kBackward, {first, first + 1}, size.samples});
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
    const int64_t tokens = job_.plan.sequence_length;
    size.activation_bytes = SavedActivationBytes(job_.model, first, size.samples, tokens) +
                            BoundaryBytes(job_.model, 1, size.samples, tokens) * 2;
  }
  return absl::OkStatus();
}

// In turn, for a backward destroys what the forward kept; the difference is the backward's time.
absl::Status LayerProfiler::MeasureKept(LayerRange block, LayerSizeProfile& size) {
  HARMONY_RETURN_IF_ERROR(Prepare({TaskKind::kBackward, block, size.samples, /*kept=*/true}));
  Command forward = command_;
  ComputeTask& task = std::get<ComputeTask>(forward.body);
  task.kind = TaskKind::kForward;
  task.gradients.clear();
  task.outputs = {{block.last + 1, *task.input_gradient}};
  task.input_gradient.reset();
  task.output_gradient.reset();
  HARMONY_ASSIGN_OR_RETURN(std::vector<double> alone,
                           TimeRepeats(limits_, [&] { return worker_->Run(forward); }));
  HARMONY_ASSIGN_OR_RETURN(std::vector<double> both, TimeRepeats(limits_, [&]() -> absl::Status {
                             HARMONY_RETURN_IF_ERROR(worker_->Run(forward));
                             return RunOnce();
                           }));
  size.keeping_forward = MeasuredOf(alone);
  size.kept_backward = Minus(MeasuredOf(both), size.keeping_forward->median);
  return absl::OkStatus();
}

absl::Status LayerProfiler::MeasureGradients(LayerProfile& layer) {
  if (device_.flops.value > 0) return absl::OkStatus();  // within the modelled time of a task
  HARMONY_RETURN_IF_ERROR(PrepareBackward(layer.layers.front(), layer.sizes.front().samples));
  HARMONY_RETURN_IF_ERROR(RunOnce());  // sets the thread's number of threads
  const ComputeTask& task = std::get<ComputeTask>(command_.body);
  const auto for_each = [&](auto&& work) {
    for (const WeightBinding& bound : task.gradients) {
      work(reinterpret_cast<float*>(memory_.data() + bound.offset.count()),
           job_.model.blocks[job_.model.uses[bound.use].block].elements);
    }
    return absl::OkStatus();
  };
  HARMONY_ASSIGN_OR_RETURN(std::vector<double> zero,
                           TimeRepeats(limits_, [&] { return for_each(kernels::Zero); }));
  layer.zero = MeasuredOf(zero);
  HARMONY_ASSIGN_OR_RETURN(std::vector<double> check,
                           TimeRepeats(limits_, [&] { return for_each(kernels::AllFinite); }));
  layer.check = MeasuredOf(check);
  return absl::OkStatus();
}

}  // namespace harmony
