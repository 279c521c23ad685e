#include "worker/service/device_worker.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/gradient_times.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "common/runtime/program.h"
#include "worker/service/device_backends.h"

namespace harmony::worker {
namespace {

const char* NameOf(command::TaskKind kind) {
  switch (kind) {
    case command::TaskKind::kForward:
      return "forward";
    case command::TaskKind::kBackward:
      return "backward";
    case command::TaskKind::kForwardBackward:
      return "forward-backward";
  }
  return "task";
}

// Turns offsets into addresses; each must be aligned and, with its tensors, inside the resident
// part.
class Binder {
 public:
  Binder(DeviceAddress begin, Bytes resident) : begin_(begin), resident_(resident) {}

  absl::Status At(Bytes offset, Bytes size, const char* what, DeviceAddress& address,
                  int64_t alignment = kSlotAlignment) const {
    if (offset.count() % alignment != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", what, " at ", offset.count(), " is not aligned"));
    }
    if (offset < Bytes(0) || offset > resident_ || size > resident_ - offset) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", what, ", ", FormatBytesExact(size), " at ", offset.count(),
                       ", lies outside the resident ", FormatBytesExact(resident_)));
    }
    address = begin_ + offset;
    return absl::OkStatus();
  }
  // Of things of this size.
  absl::Status CheckStride(Bytes stride, Bytes size) const {
    const bool within = stride >= resident_ * -1 && stride <= resident_;
    const bool apart = stride >= size || stride <= size * -1;
    if (within && apart && stride.count() % kSlotAlignment == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("gradient buffers of ", FormatBytesExact(size),
                                                   " cannot lie ", stride.count(), " apart"));
  }
  // Leaves the address as it is when there is no offset.
  absl::Status At(const std::optional<Bytes>& offset, Bytes size, const char* what,
                  DeviceAddress& address) const {
    return offset.has_value() ? At(*offset, size, what, address) : absl::OkStatus();
  }

 private:
  const DeviceAddress begin_;
  const Bytes resident_;
};

// The weights and gradients of a task.
absl::Status BindReferences(const model::ModelSpec& model, const command::ComputeTask& task,
                            const Binder& binder, std::vector<ReferenceBinding>& references) {
  const auto bind = [&](const command::WeightBinding& from, const char* what,
                        DeviceAddress ReferenceBinding::*place) -> absl::Status {
    if (from.reference < 0 || from.reference >= static_cast<int>(model.references.size())) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no use ", from.reference));
    }
    auto bound = std::find_if(
        references.begin(), references.end(),
        [&](const ReferenceBinding& reference) { return reference.reference == from.reference; });
    if (bound == references.end())
      bound = references.insert(references.end(), ReferenceBinding{from.reference, {}, {}});
    const model::ParamBlock& block = model.blocks[model.references[from.reference].block];
    const bool weights = place == &ReferenceBinding::weights;
    const Bytes size = weights ? block.weight_bytes : block.accumulator_bytes;
    HARMONY_RETURN_IF_ERROR(binder.At(from.offset, size, what, (*bound).*place));
    // Of the gradient buffers the last one that the task uses, its own; the others lie between.
    const int own = weights ? 0 : model::WaitingSums(task.replica);
    if (own == 0) return absl::OkStatus();
    HARMONY_RETURN_IF_ERROR(binder.CheckStride(task.gradient_stride, size));
    DeviceAddress address;
    return binder.At(from.offset + task.gradient_stride * own, size, what, address);
  };
  for (const command::WeightBinding& weights : task.weights) {
    HARMONY_RETURN_IF_ERROR(bind(weights, "weights", &ReferenceBinding::weights));
  }
  for (const command::WeightBinding& gradients : task.gradients) {
    HARMONY_RETURN_IF_ERROR(bind(gradients, "gradients", &ReferenceBinding::gradients));
  }
  return absl::OkStatus();
}

}  // namespace

// The runner, with its layers, is destroyed before the device.
struct DeviceWorker::Job {
  const runtime::AttachedJob description;
  const Bytes resident;
  const std::unique_ptr<ComputeDevice> device;
  LayerRunner runner;
  const model::GradientTimes gradient_times{description.model};
};

// What a task waits for on its way, and by how much that makes a paced one longer.
class DeviceWorker::Waits {
 public:
  Waits(const Job& job, const command::ComputeTask& task, const runtime::AwaitSemaphore& await,
        const runtime::Pacer::Reservation& paced)
      : job_(job), task_(task), await_(await) {
    if (task.gradient_waits.empty()) return;
    stall_.emplace(job.gradient_times, BackwardTaskOf(task), task.layers, task.awaited,
                   paced.deadline - paced.duration, paced.duration);
  }

  absl::Status Gradient(int reference) {
    const auto bound = absl::c_find_if(task_.gradients, [&](const command::WeightBinding& each) {
      return each.reference == reference;
    });
    const auto i = static_cast<size_t>(bound - task_.gradients.begin());
    const Nanos before = MonotonicClock().Now();
    HARMONY_RETURN_IF_ERROR(await_(task_.gradient_waits[i]));
    const Nanos now = MonotonicClock().Now();
    if (now - before < kAtOnce) return absl::OkStatus();
    stall_->FreeAt(job_.description.model.references[static_cast<size_t>(reference)].layer, now);
    return absl::OkStatus();
  }
  Nanos stall() const { return stall_ ? stall_->total() : Nanos(); }

 private:
  static constexpr Nanos kAtOnce{20'000};
  const Job& job_;
  const command::ComputeTask& task_;
  const runtime::AwaitSemaphore& await_;
  std::optional<model::GradientStall> stall_;
};

absl::StatusOr<std::unique_ptr<DeviceWorker>> DeviceWorker::Create(
    const plan::DeviceSpec& device, std::unique_ptr<DeviceBackend> backend) {
  if (backend->memory() != device.memory) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the memory of device ", device.ordinal, " has ", FormatBytesExact(backend->memory()),
        ", its specification says ", FormatBytesExact(device.memory)));
  }
  return std::unique_ptr<DeviceWorker>(new DeviceWorker(device, std::move(backend)));
}

DeviceWorker::DeviceWorker(const plan::DeviceSpec& device, std::unique_ptr<DeviceBackend> backend)
    : device_(device), backend_(std::move(backend)) {}

DeviceWorker::~DeviceWorker() { EndJob(); }

absl::Status DeviceWorker::SetUpJob(const runtime::AttachedJob& job) {
  const size_t ordinal = static_cast<size_t>(device_.ordinal);
  if (ordinal >= job.plan.devices.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has ", job.plan.devices.size(),
                                                   " devices, this is number ", ordinal));
  }
  const plan::DevicePlan& plan = job.plan.devices[ordinal];
  if (plan.memory != device_.usable() || plan.resident < Bytes(0) || plan.resident > plan.memory ||
      plan.resident.count() % kSlotAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan splits device ", ordinal, ", ", FormatBytesExact(device_.usable()), ", at ",
        FormatBytesExact(plan.resident), " of ", FormatBytesExact(plan.memory)));
  }
  EndJob();  // first: two jobs' workspaces are more than the device has
  absl::StatusOr<std::unique_ptr<ComputeDevice>> found = backend_->Open(
      plan.resident, plan.memory + device_.reserve() - plan.resident, job.spec.compute_threads);
  // A file of the model's that cannot be read now is Unavailable too, and no reason to end.
  HARMONY_RETURN_IF_ERROR(runtime::EndIfDeviceIsLost(found.status()));
  std::unique_ptr<ComputeDevice> device = *std::move(found);
  HARMONY_ASSIGN_OR_RETURN(LayerChain layers, BuildLayers(job, *device));
  ComputeDevice& opened = *device;
  std::unique_ptr<Job> next(new Job{job, plan.resident, std::move(device),
                                    LayerRunner(job.model, std::move(layers), opened)});
  MutexLock lock(mutex_);
  job_.swap(next);  // what was there goes when the lock is free again
  return absl::OkStatus();
}

void DeviceWorker::EndJob() {
  std::unique_ptr<Job> ended;
  MutexLock lock(mutex_);
  ended = std::move(job_);
}

absl::Status DeviceWorker::Run(const command::Command& command,
                               const runtime::AwaitSemaphore& await) {
  const command::ComputeTask* task = std::get_if<command::ComputeTask>(&command.body);
  if (task == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("command ", command.header.id, " is not a compute task"));
  }
  const std::string name =
      absl::StrCat("device ", device_.ordinal, ", step ", command.header.step + 1, ", ",
                   NameOf(task->kind), " of layers ", task->layers.first, "..", task->layers.last,
                   ", microbatch ", task->microbatch);
  if (job_ == nullptr)
    return absl::FailedPreconditionError(absl::StrCat(name, ": no job is set up"));
  const bool paced = device_.paced();
  runtime::Pacer::Reservation reservation;
  if (paced) reservation = pacer_.Reserve(ModelledDuration(command, *task));
  Waits waits(*job_, *task, await, reservation);
  HARMONY_RETURN_IF_ERROR_CTX(RunTask(*task, waits), name);
  if (!paced) return absl::OkStatus();
  reservation.deadline += waits.stall();
  pacer_.FinishAt(reservation);
  return absl::OkStatus();
}

absl::Status DeviceWorker::RunTask(const command::ComputeTask& task, Waits& waits) {
  HARMONY_ASSIGN_OR_RETURN(GroupBinding binding, Bind(task));
  if (!task.gradient_waits.empty()) {
    const bool sums = task.awaited == model::Awaited::kSums;
    (sums ? binding.await_sum : binding.await_buffer) = [&waits](int reference) {
      return waits.Gradient(reference);
    };
  }
  switch (task.kind) {
    case command::TaskKind::kForward:
      return job_->runner.RunForward(binding);
    case command::TaskKind::kBackward:
      return job_->runner.RunBackward(binding);
    case command::TaskKind::kForwardBackward:
      return job_->runner.RunForwardBackward(binding);
  }
  return absl::InvalidArgumentError("unknown kind of task");
}

absl::StatusOr<GroupBinding> DeviceWorker::Bind(const command::ComputeTask& task) const {
  const model::ModelSpec& model = job_->description.model;
  const int last_layer = model.num_layers() - 1;
  if (task.layers.first < 0 || task.layers.last < task.layers.first ||
      task.layers.last > last_layer || task.samples <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has layers 0..", last_layer, ", samples: ", task.samples));
  }
  const Binder binder(job_->device->resident(), job_->resident);
  GroupBinding binding;
  binding.layers = task.layers;
  binding.samples = task.samples;
  binding.microbatch = job_->description.plan.microbatch_size;
  const auto boundary_size = [&](int boundary) {
    return model::BoundaryBytes(model, boundary, task.samples);
  };
  const auto gradient_size = [&](int boundary) {
    return model::BoundaryGradientBytes(model, boundary, task.samples);
  };

  HARMONY_RETURN_IF_ERROR(BindReferences(model, task, binder, binding.references));
  const int first = task.layers.first;
  const bool from_stash = task.kind == command::TaskKind::kBackward && first == 0;
  HARMONY_RETURN_IF_ERROR(
      binder.At(task.input, boundary_size(from_stash ? 1 : first), "input", binding.input));
  HARMONY_RETURN_IF_ERROR(binder.At(task.kept,
                                    model::KeptActivationBytes(model, task.layers, task.samples),
                                    "kept activations", binding.kept));
  for (const command::OutputBinding& output : task.outputs) {
    if (output.boundary <= first || output.boundary > task.layers.last + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("these layers have no output at boundary ", output.boundary));
    }
    BoundaryOutput& bound = binding.outputs.emplace_back(BoundaryOutput{output.boundary, {}});
    HARMONY_RETURN_IF_ERROR(
        binder.At(output.offset, boundary_size(output.boundary), "output", bound.address));
  }
  HARMONY_RETURN_IF_ERROR(binder.At(task.output_gradient, gradient_size(task.layers.last + 1),
                                    "output gradient", binding.output_gradient));
  HARMONY_RETURN_IF_ERROR(binder.At(task.input_gradient, gradient_size(first), "input gradient",
                                    binding.input_gradient));
  binding.batch.resize(model.inputs.size());
  for (const command::InputBinding& input : task.inputs) {
    if (input.input < 0 || input.input >= std::ssize(model.inputs)) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no batch input ", input.input));
    }
    HARMONY_RETURN_IF_ERROR(
        binder.At(input.offset, model::InputBytes(model, input.input, task.samples),
                  model.inputs[input.input].tensor.name.c_str(), binding.batch[input.input]));
  }
  if (task.loss) {  // those of a step follow each other
    constexpr int64_t kSize = sizeof(command::LossSlot);
    HARMONY_RETURN_IF_ERROR(
        binder.At(*task.loss, Bytes(kSize), "loss", binding.loss.slot, /*alignment=*/kSize));
  }
  binding.loss.total_labels = task.total_labels;
  binding.replica = task.replica;
  binding.gradient_stride = task.gradient_stride;
  binding.first_microbatch = task.first_microbatch;
  binding.last_microbatch = task.last_microbatch;
  binding.stores_gradients = task.stores_gradients;
  return binding;
}

// As the dispatcher modelled it; when it did not, backward counts as two forwards, with recompute
// as three, and so does the fused task, which needs no second one.
Nanos DeviceWorker::ModelledDuration(const command::Command& command,
                                     const command::ComputeTask& task) const {
  if (command.header.expected > Nanos(0)) return command.header.expected;
  double flops = 0;
  for (int layer = task.layers.first; layer <= task.layers.last; ++layer) {
    flops += model::ForwardFlops(job_->description.model, layer, task.samples);
  }
  const int forwards = task.kind == command::TaskKind::kForward ? 1 : task.kept ? 2 : 3;
  return Nanos::FromSeconds(flops * forwards / device_.flops.value);
}

ComputeDevice* DeviceWorker::device() const {
  return job_ != nullptr ? job_->device.get() : nullptr;
}

DeviceWorker::Stats DeviceWorker::stats() const {
  Stats stats;
  stats.paced = pacer_.paced();
  stats.overruns = pacer_.overruns();
  MutexLock lock(mutex_);
  if (job_ != nullptr) {
    const ComputeDevice::Usage usage = job_->device->usage();
    stats.workspace = usage.current;
    stats.workspace_peak = usage.peak;
  }
  return stats;
}

}  // namespace harmony::worker
