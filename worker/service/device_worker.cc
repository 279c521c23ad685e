#include "worker/service/device_worker.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/padding_token.h"

namespace harmony {
namespace {

const char* NameOf(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward:
      return "forward";
    case TaskKind::kBackward:
      return "backward";
    case TaskKind::kForwardBackward:
      return "forward-backward";
  }
  return "task";
}

// Turns offsets into pointers; each must be aligned and, with its tensor, inside the resident part.
class Binder {
 public:
  Binder(std::byte* base, Bytes resident) : base_(base), resident_(resident) {}

  template <typename T>
  absl::Status At(Bytes offset, Bytes size, const char* what, T** pointer) const {
    if (offset.count() % kSlotAlignment != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", what, " at ", offset.count(), " is not aligned"));
    }
    if (offset < Bytes(0) || offset > resident_ || size > resident_ - offset) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", what, ", ", FormatBytesExact(size), " at ", offset.count(),
                       ", lies outside the resident ", FormatBytesExact(resident_)));
    }
    *pointer = reinterpret_cast<T*>(base_ + offset.count());
    return absl::OkStatus();
  }
  // Leaves the pointer null when there is no offset.
  template <typename T>
  absl::Status At(const std::optional<Bytes>& offset, Bytes size, const char* what,
                  T** pointer) const {
    return offset.has_value() ? At(*offset, size, what, pointer) : absl::OkStatus();
  }

 private:
  std::byte* base_;
  Bytes resident_;
};

}  // namespace

// The runner is destroyed before the workspace that its tensors lie in.
struct DeviceWorker::Job {
  Job(const AttachedJob& description, Bytes resident, Workspace memory)
      : description(description),
        resident(resident),
        workspace(std::move(memory)),
        allocator(workspace.data(), workspace.size()) {
    allocator.Activate();
    runner = std::make_unique<LayerRunner>(description.model);
    runner->set_padding_token(PaddingToken(description.model_config_json));
  }
  ~Job() {
    runner.reset();
    allocator.Deactivate();
  }

  const AttachedJob description;
  const Bytes resident;
  const Workspace workspace;
  SimAllocator allocator;
  std::unique_ptr<LayerRunner> runner;
};

absl::StatusOr<std::unique_ptr<DeviceWorker>> DeviceWorker::Create(const DeviceSpec& device,
                                                                   MappedRegion region) {
  if (device.kind != DeviceKind::kSim) {
    return absl::UnimplementedError(absl::StrCat(
        "device ", ToString(device),
        ": this build computes on sim devices only; the cuda plugin is not part of it"));
  }
  if (region.size() != device.memory) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the memory of device ", device.ordinal, " has ", FormatBytesExact(region.size()),
        ", its specification says ", FormatBytesExact(device.memory)));
  }
  return std::unique_ptr<DeviceWorker>(new DeviceWorker(device, std::move(region)));
}

DeviceWorker::DeviceWorker(const DeviceSpec& device, MappedRegion region)
    : device_(device), region_(std::move(region)) {}

DeviceWorker::~DeviceWorker() { EndJob(); }

absl::Status DeviceWorker::SetUpJob(const AttachedJob& job) {
  const size_t ordinal = static_cast<size_t>(device_.ordinal);
  if (ordinal >= job.plan.devices.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has ", job.plan.devices.size(),
                                                   " devices, this is number ", ordinal));
  }
  const DevicePlan& plan = job.plan.devices[ordinal];
  if (plan.memory != device_.usable() || plan.resident < Bytes(0) || plan.resident > plan.memory ||
      plan.resident.count() % kSlotAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan splits device ", ordinal, ", ", FormatBytesExact(device_.usable()), ", at ",
        FormatBytesExact(plan.resident), " of ", FormatBytesExact(plan.memory)));
  }
  EndJob();  // first: two workspaces cannot be LibTorch's at once
  // The region beyond the resident part stays untouched: the cap covers both together.
  HARMONY_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Map(plan.memory - plan.resident));
  auto next = std::make_unique<Job>(job, plan.resident, std::move(workspace));
  std::lock_guard lock(mutex_);
  job_ = std::move(next);
  return absl::OkStatus();
}

void DeviceWorker::EndJob() {
  std::unique_ptr<Job> ended;
  std::lock_guard lock(mutex_);
  ended = std::move(job_);
}

absl::Status DeviceWorker::Run(const Command& command) {
  const ComputeTask* task = std::get_if<ComputeTask>(&command.body);
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
  // LibTorch keeps the number of threads per calling thread, so the lane's own thread sets it.
  if (const int threads = job_->description.spec.compute_threads; threads != threads_) {
    SetComputeThreads(threads);
    threads_ = threads;
  }
  std::optional<Pacer::Reservation> reservation;
  if (device_.flops.value > 0) reservation = pacer_.Reserve(ModelledDuration(command, *task));
  HARMONY_RETURN_IF_ERROR_CTX(RunTask(*task), name);
  if (reservation.has_value()) pacer_.FinishAt(*reservation);
  return absl::OkStatus();
}

absl::Status DeviceWorker::RunTask(const ComputeTask& task) {
  HARMONY_ASSIGN_OR_RETURN(const GroupBinding binding, Bind(task));
  switch (task.kind) {
    case TaskKind::kForward:
      return job_->runner->RunForward(binding);
    case TaskKind::kBackward:
      return job_->runner->RunBackward(binding);
    case TaskKind::kForwardBackward:
      return job_->runner->RunForwardBackward(binding);
  }
  return absl::InvalidArgumentError("unknown kind of task");
}

absl::StatusOr<GroupBinding> DeviceWorker::Bind(const ComputeTask& task) const {
  const ModelSpec& model = job_->description.model;
  const int last_layer = model.num_layers() - 1;
  if (task.layers.first < 0 || task.layers.last < task.layers.first ||
      task.layers.last > last_layer || task.samples <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has layers 0..", last_layer, ", samples: ", task.samples));
  }
  const Binder binder(region_.data(), job_->resident);
  GroupBinding binding;
  binding.layers = task.layers;
  binding.samples = task.samples;
  binding.tokens = job_->description.plan.sequence_length;
  binding.microbatch = job_->description.plan.microbatch_size;
  const Bytes ids(task.samples * binding.tokens * static_cast<int64_t>(sizeof(int32_t)));
  const Bytes hidden = BoundaryBytes(model, 1, task.samples, binding.tokens);

  const auto use_of = [&binding](int use) -> UseBinding& {
    for (UseBinding& bound : binding.uses) {
      if (bound.use == use) return bound;
    }
    return binding.uses.emplace_back(UseBinding{.use = use});
  };
  const auto block_size = [&model](int use) -> absl::StatusOr<Bytes> {
    if (use < 0 || use >= static_cast<int>(model.uses.size())) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no use ", use));
    }
    return model.blocks[model.uses[use].block].size();
  };
  for (const WeightBinding& weights : task.weights) {
    HARMONY_ASSIGN_OR_RETURN(const Bytes size, block_size(weights.use));
    HARMONY_RETURN_IF_ERROR(
        binder.At(weights.offset, size, "weights", &use_of(weights.use).weights));
  }
  for (const WeightBinding& gradients : task.gradients) {
    HARMONY_ASSIGN_OR_RETURN(const Bytes size, block_size(gradients.use));
    HARMONY_RETURN_IF_ERROR(
        binder.At(gradients.offset, size, "gradients", &use_of(gradients.use).gradients));
  }
  HARMONY_RETURN_IF_ERROR(binder.At(task.input, hidden, "input", &binding.input));
  HARMONY_RETURN_IF_ERROR(
      binder.At(task.kept, KeptActivationBytes(model, task.layers, task.samples, binding.tokens),
                "kept activations", &binding.kept));
  HARMONY_RETURN_IF_ERROR(binder.At(task.tokens, ids, "tokens", &binding.token_ids));
  for (const OutputBinding& output : task.outputs) {
    HARMONY_RETURN_IF_ERROR(
        binder.At(output.offset, hidden, "output",
                  &binding.outputs.emplace_back(BoundaryOutput{.boundary = output.boundary}).data));
  }
  HARMONY_RETURN_IF_ERROR(
      binder.At(task.output_gradient, hidden, "output gradient", &binding.output_gradient));
  HARMONY_RETURN_IF_ERROR(
      binder.At(task.input_gradient, hidden, "input gradient", &binding.input_gradient));
  HARMONY_RETURN_IF_ERROR(binder.At(task.labels, ids, "labels", &binding.labels));
  HARMONY_RETURN_IF_ERROR(binder.At(task.loss, Bytes(sizeof(LossSlot)), "loss", &binding.loss));
  binding.total_labels = task.total_labels;
  binding.first_microbatch = task.first_microbatch;
  binding.last_microbatch = task.last_microbatch;
  return binding;
}

// As the dispatcher modelled it; when it did not, backward counts as two forwards, with recompute
// as three, and so does the fused task, which needs no second one.
Nanos DeviceWorker::ModelledDuration(const Command& command, const ComputeTask& task) const {
  if (command.header.expected > Nanos(0)) return command.header.expected;
  double flops = 0;
  for (int layer = task.layers.first; layer <= task.layers.last; ++layer) {
    flops += ForwardFlops(job_->description.model, layer, task.samples,
                          job_->description.plan.sequence_length);
  }
  const int forwards = task.kind == TaskKind::kForward ? 1 : task.kept ? 2 : 3;
  return Nanos::FromSeconds(flops * forwards / device_.flops.value);
}

DeviceWorker::Stats DeviceWorker::stats() const {
  Stats stats;
  stats.paced = pacer_.paced();
  stats.overruns = pacer_.overruns();
  std::lock_guard lock(mutex_);
  if (job_ != nullptr) {
    const SimAllocator::Usage usage = job_->allocator.usage();
    stats.workspace = usage.current;
    stats.workspace_peak = usage.peak;
  }
  return stats;
}

}  // namespace harmony
