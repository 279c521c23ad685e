#include "bench/virtual_trainer/virtual_trainer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "bench/virtual_trainer/device_pages.h"
#include "bench/virtual_trainer/device_tasks.h"
#include "bench/virtual_trainer/host_tensors.h"
#include "bench/virtual_trainer/lane_threads.h"
#include "bench/virtual_trainer/messages.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "worker/device/cpu_memory.h"
#include "worker/host/init.h"

namespace harmony::bench {
namespace {

using baselines::Action;
using baselines::kNoTensor;
using baselines::Operation;
using baselines::Tensor;
using baselines::Traffic;
using baselines::Work;
using command::LaneKind;

struct Device {
  std::unique_ptr<DevicePages> pages;
  HostTensors host;
  std::unique_ptr<DeviceTasks> tasks;
  std::vector<double> update_seconds;  // by step
};

absl::Status Supports(const VirtualJob& job) {
  const job::JobSpec& spec = job.costs->job();
  if (model::HasMasters(job.costs->model())) return absl::UnimplementedError("bf16: fp32 alone");
  if (spec.max_grad_norm > 0) return absl::UnimplementedError("max_grad_norm: no clipping here");
  if (spec.compute_threads != 1) return absl::UnimplementedError("compute_threads: 1 alone");
  if (job.setting.paging.page != kPage) return absl::InternalError("pages of another size");
  return absl::OkStatus();
}

class Trainer : public VirtualTrainer {
 public:
  explicit Trainer(const VirtualJob& job)
      : job_(job), costs_(*job.costs), model_(costs_.model()), simulation_(costs_, &recording_) {}

  absl::Status Prepare();
  void InitializeRandom(uint64_t seed) override;
  absl::StatusOr<VirtualRun> Run(absl::Span<const Batch> batches, bool paced) override;

 private:
  const Action& ActionOf(Operation operation) const {
    return recording_.actions()[static_cast<size_t>(operation)];
  }
  Device& DeviceOf(const Action& action) { return devices_[static_cast<size_t>(action.device)]; }
  int microbatches() const { return job_.setting.microbatches; }
  // The number that a device's microbatch has in its step's batch.
  int IndexInBatch(const Action& action) const {
    const int first = job_.baseline->data_parallel ? action.device * microbatches() : 0;
    return first + action.work.microbatch % microbatches();
  }
  int StepOf(const Work& work) const { return work.microbatch / microbatches(); }

  absl::Status GroupReductions();
  absl::Status PlaceOnHost(absl::Span<const Batch> batches);
  absl::Status PlaceBatch(const Action& action, absl::Span<const Batch> batches);
  void Place(Device& device, Tensor tensor, absl::Span<const std::byte> contents);

  absl::Status CarryOut(Operation operation);
  absl::Status BeginStays(const Action& action);
  absl::Status CheckResident(const Action& action) const;
  absl::StatusOr<TaskTensors> View(const Action& action) const;
  void CopyOut(Operation operation, const Action& action);
  absl::Status CopyIn(Operation operation, const Action& action);
  absl::Status RunTask(Operation operation, const Action& action);
  absl::Status RunLayer(Operation operation, const Action& action);
  absl::Status RunUpdate(Operation operation, const Action& action);
  absl::Status RunReduction(Operation operation, const Action& action);
  void Count(Operation operation, Traffic traffic, Bytes moved);
  VirtualRun Result(const LaneTimes& times) const;

  const VirtualJob job_;
  const baselines::LayerCosts& costs_;
  const model::ModelSpec& model_;
  baselines::Recording recording_;
  baselines::Simulation simulation_;
  std::deque<Device> devices_;
  std::vector<std::vector<float>> weights_;  // to begin with, by block
  std::vector<int> group_of_;                // reductions, by operation
  std::vector<std::vector<Operation>> groups_;
  Messages messages_;
  std::vector<int64_t> labels_;                           // that count, by step
  std::vector<std::vector<command::LossSlot>> losses_;    // by step
  std::vector<std::vector<baselines::StepBytes>> moved_;  // by lane, which counts its own; step
};

absl::Status Trainer::Prepare() {
  HARMONY_RETURN_IF_ERROR(Supports(job_));
  job_.baseline->schedule(job_.setting, &simulation_);
  const baselines::Timeline& timeline = simulation_.timeline;
  recording_.At(timeline.num_operations());  // one for each
  simulation_.timeline.Run();
  for (const baselines::DeviceProgram& program : simulation_.devices) {
    if (const auto& shortage = program.memory().shortage(); shortage.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("device ", program.device(), " lacks ", FormatBytes(shortage->missing()),
                       ": ", shortage->what, " needs ", FormatBytes(shortage->needed), " of ",
                       FormatBytes(shortage->capacity)));
    }
    Device& device = devices_.emplace_back();
    const Bytes memory = costs_.machine().devices[static_cast<size_t>(program.device())].usable();
    if (memory.count() % kPage != 0) {
      return absl::InvalidArgumentError(absl::StrCat("mem: a multiple of ", kPage, " is needed"));
    }
    HARMONY_ASSIGN_OR_RETURN(device.pages, DevicePages::Create(memory));
    HARMONY_ASSIGN_OR_RETURN(device.tasks,
                             DeviceTasks::Create(*job_.config, job_.padding_token, costs_));
    device.update_seconds.resize(static_cast<size_t>(timeline.num_steps()));
  }
  moved_.assign(static_cast<size_t>(timeline.lanes().size()),
                std::vector<baselines::StepBytes>(static_cast<size_t>(timeline.num_steps())));
  return GroupReductions();
}

absl::Status Trainer::GroupReductions() {
  absl::flat_hash_map<std::pair<int, int>, int> number;  // of step and block
  for (Operation operation = 0; operation < simulation_.timeline.num_operations(); ++operation) {
    const Action& action = ActionOf(operation);
    group_of_.push_back(-1);
    if (action.kind == Action::Kind::kSend) messages_.Expect(action.sends);
    if (action.work.kind != Work::Kind::kReduce) continue;
    const auto [at, added] = number.try_emplace(
        {simulation_.timeline.StepOf(operation), action.work.block}, groups_.size());
    if (added) groups_.emplace_back();
    groups_[static_cast<size_t>(at->second)].push_back(operation);
    group_of_.back() = at->second;
  }
  for (const std::vector<Operation>& group : groups_) {
    if (model::IsPowerOfTwo(static_cast<int64_t>(group.size()))) continue;
    return absl::UnimplementedError(
        absl::StrCat("gradients of ", group.size(), " devices: a power of two alone"));
  }
  return absl::OkStatus();
}

void Trainer::InitializeRandom(uint64_t seed) {
  weights_.clear();
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    const model::ParamBlock& block = model_.blocks[b];
    std::vector<float>& weights = weights_.emplace_back(block.weight_bytes.count() / sizeof(float));
    for (const model::TensorSpec& tensor : block.tensors) {
      worker::InitializeRange(
          tensor, static_cast<int>(b), seed, 0,
          absl::MakeSpan(weights).subspan(static_cast<size_t>(tensor.weight.first_element()),
                                          static_cast<size_t>(tensor.elements)));
    }
  }
}

// ---- What the host has before the first step ----

void Trainer::Place(Device& device, Tensor tensor, absl::Span<const std::byte> contents) {
  if (tensor == kNoTensor || device.host.has(tensor)) return;
  const absl::Span<std::byte> copy = device.host.Replace(tensor, contents.size());
  std::copy(contents.begin(), contents.end(), copy.begin());
}

absl::Status Trainer::PlaceBatch(const Action& action, absl::Span<const Batch> batches) {
  const std::vector<int> inputs = model::InputsOf(model_, {action.work.layer, action.work.layer});
  if (inputs.size() != 1) {
    return absl::UnimplementedError(absl::StrCat("a layer that reads ", inputs.size(), " inputs"));
  }
  const Batch& batch = batches[static_cast<size_t>(StepOf(action.work))];
  const std::vector<int32_t>& input = inputs.front() == 0 ? batch.tokens : batch.labels;
  const auto count = static_cast<size_t>(costs_.microbatch() * costs_.job().sequence_length);
  const size_t first = static_cast<size_t>(IndexInBatch(action)) * count;
  Place(DeviceOf(action), action.work.batch,
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(input.data() + first),
                            count * sizeof(int32_t)));
  return absl::OkStatus();
}

absl::Status Trainer::PlaceOnHost(absl::Span<const Batch> batches) {
  const auto weights_of = [&](int block) {
    const std::vector<float>& weights = weights_[static_cast<size_t>(block)];
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(weights.data()),
                               weights.size() * sizeof(float));
  };
  for (const Action& action : recording_.actions()) {
    Device& device = DeviceOf(action);
    for (const Action::Use& use : action.uses) device.host.Grow(use.tensor);
    const Work& work = action.work;
    if (work.kind == Work::Kind::kForward || work.kind == Work::Kind::kBackward) {
      const auto& references = model_.layers[static_cast<size_t>(work.layer)].references;
      for (size_t i = 0; i < references.size(); ++i) {
        Place(device, work.weights[i],
              weights_of(model_.references[static_cast<size_t>(references[i])].block));
      }
      if (work.batch != kNoTensor) HARMONY_RETURN_IF_ERROR(PlaceBatch(action, batches));
    } else if (work.kind == Work::Kind::kUpdate) {
      const model::ParamBlock& block = model_.blocks[static_cast<size_t>(work.block)];
      Place(device, work.weights[0], weights_of(work.block));
      Place(device, work.weights_before, weights_of(work.block));
      const Bytes moments = block.moment_bytes * job::MomentsOf(costs_.job());
      if (!device.host.has(work.state)) {
        device.host.Replace(work.state, static_cast<size_t>(moments.count()));  // zeros
      }
    }
  }
  return absl::OkStatus();
}

// ---- Operations ----

absl::StatusOr<VirtualRun> Trainer::Run(absl::Span<const Batch> batches, bool paced) {
  if (static_cast<int>(batches.size()) < simulation_.timeline.num_steps()) {
    return absl::InvalidArgumentError("fewer batches than steps");
  }
  for (const Batch& batch : batches) {
    labels_.push_back(std::count_if(batch.labels.begin(), batch.labels.end(),
                                    [](int32_t label) { return label >= 0; }));
    losses_.emplace_back(batch.labels.size() /
                         static_cast<size_t>(costs_.microbatch() * costs_.job().sequence_length));
  }
  HARMONY_RETURN_IF_ERROR(PlaceOnHost(batches));
  HARMONY_ASSIGN_OR_RETURN(
      const LaneTimes times,
      RunOnThreads(simulation_.timeline, {.paced = paced, .group_of = group_of_},
                   [this](Operation operation) { return CarryOut(operation); }));
  return Result(times);
}

absl::Status Trainer::CarryOut(Operation operation) {
  const Action& action = ActionOf(operation);
  HARMONY_RETURN_IF_ERROR(BeginStays(action));
  switch (action.kind) {
    case Action::Kind::kNothing:
      break;
    case Action::Kind::kCopyIn:
      return CopyIn(operation, action);
    case Action::Kind::kCopyOut:
      CopyOut(operation, action);
      break;
    case Action::Kind::kSend:
      Count(operation, action.traffic, messages_.PassOn(action.sends, operation));
      break;
    case Action::Kind::kTask:
      return RunTask(operation, action);
  }
  return absl::OkStatus();
}

absl::Status Trainer::BeginStays(const Action& action) {
  Device& device = DeviceOf(action);
  for (const Action::Use& use : action.uses) {
    if (use.made) device.pages->Begin(use.stay, recording_.place(use.stay));
  }
  if (action.scratch != baselines::kNoStay) {
    device.pages->Begin(action.scratch, recording_.place(action.scratch));
  }
  return CheckResident(action);
}

absl::Status Trainer::CheckResident(const Action& action) const {
  const Device& device = devices_[static_cast<size_t>(action.device)];
  for (const Action::Use& use : action.uses) {
    HARMONY_RETURN_IF_ERROR(device.pages->CheckResident(use.stay, recording_.place(use.stay)));
  }
  return absl::OkStatus();
}

absl::StatusOr<TaskTensors> Trainer::View(const Action& action) const {
  const DevicePages* const pages = devices_[static_cast<size_t>(action.device)].pages.get();
  std::vector<PageView::Part> parts;
  for (const Action::Use& use : action.uses) parts.push_back({pages, &recording_.place(use.stay)});
  parts.push_back({pages, &recording_.place(action.scratch)});
  HARMONY_ASSIGN_OR_RETURN(PageView view, PageView::Map(parts));
  return TaskTensors(action, std::move(view));
}

absl::Status Trainer::CopyIn(Operation operation, const Action& action) {
  Device& device = DeviceOf(action);
  const Action::Use& use = action.uses.front();
  if (!device.host.has(use.tensor)) {
    return absl::InternalError(
        absl::StrCat("a tensor that device ", action.device, " brings in is not on the host"));
  }
  Count(operation, action.traffic,
        device.pages->Write(recording_.place(use.stay), device.host.get(use.tensor)));
  return absl::OkStatus();
}

void Trainer::CopyOut(Operation operation, const Action& action) {
  Device& device = DeviceOf(action);
  const Action::Use& use = action.uses.front();
  Count(operation, action.traffic,
        device.pages->Read(
            recording_.place(use.stay),
            device.host.Replace(use.tensor, static_cast<size_t>(action.size.count()))));
}

void Trainer::Count(Operation operation, Traffic traffic, Bytes moved) {
  const baselines::Timeline& timeline = simulation_.timeline;
  const int lane = timeline.LaneOf(operation);
  baselines::StepBytes& step =
      moved_[static_cast<size_t>(lane)][static_cast<size_t>(timeline.StepOf(operation))];
  const LaneKind kind = timeline.lanes().LaneAt(lane).kind;
  auto& direction = kind == LaneKind::kP2P   ? step.p2p
                    : kind == LaneKind::kD2H ? step.d2h
                                             : step.h2d;
  direction[static_cast<size_t>(traffic)] += moved.count();
}

absl::Status Trainer::RunTask(Operation operation, const Action& action) {
  switch (action.work.kind) {
    case Work::Kind::kForward:
    case Work::Kind::kBackward:
      HARMONY_RETURN_IF_ERROR(RunLayer(operation, action));
      break;
    case Work::Kind::kUpdate:
      HARMONY_RETURN_IF_ERROR(RunUpdate(operation, action));
      break;
    case Work::Kind::kReduce:
      HARMONY_RETURN_IF_ERROR(RunReduction(operation, action));
      break;
    case Work::Kind::kNone:
      return absl::InternalError("a task without work");
  }
  HostTensors& host = DeviceOf(action).host;
  for (const Action::Use& use : action.uses) {
    if (use.dirty) host.Invalidate(use.tensor);
  }
  for (Tensor tensor : action.ends) host.Free(tensor);
  return absl::OkStatus();
}

absl::Status Trainer::RunLayer(Operation operation, const Action& action) {
  const Work& work = action.work;
  HARMONY_ASSIGN_OR_RETURN(const TaskTensors tensors, View(action));
  for (Tensor arrives : {work.input, work.output_gradient}) {
    if (!tensors.made(arrives)) continue;
    HARMONY_RETURN_IF_ERROR(messages_.Take(work.arrival, tensors.data(arrives)));
  }
  const auto step = static_cast<size_t>(StepOf(work));
  command::LossSlot& loss = losses_[step][static_cast<size_t>(IndexInBatch(action))];
  const absl::StatusOr<absl::Span<const std::byte>> leaves =
      DeviceOf(action).tasks->RunLayer(work, tensors, {worker::AddressOf(&loss), labels_[step]});
  HARMONY_RETURN_IF_ERROR_CTX(leaves.status(), absl::StrCat("device ", action.device));
  messages_.Leave(operation, *leaves);
  return absl::OkStatus();
}

absl::Status Trainer::RunUpdate(Operation operation, const Action& action) {
  const Nanos begin = MonotonicClock().Now();
  Device& device = DeviceOf(action);
  HARMONY_ASSIGN_OR_RETURN(const TaskTensors tensors, View(action));
  const int step = simulation_.timeline.StepOf(operation);
  device.tasks->RunUpdate(action.work, tensors, step);
  device.update_seconds[static_cast<size_t>(step)] += (MonotonicClock().Now() - begin).seconds();
  return absl::OkStatus();
}

absl::Status Trainer::RunReduction(Operation operation, const Action& action) {
  const std::vector<Operation>& group =
      groups_[static_cast<size_t>(group_of_[static_cast<size_t>(operation)])];
  std::vector<PageView::Part> parts;
  size_t own = 0;
  for (Operation member : group) {
    const Action& of = ActionOf(member);
    HARMONY_RETURN_IF_ERROR(CheckResident(of));
    if (member == operation) own = parts.size();
    parts.push_back({devices_[static_cast<size_t>(of.device)].pages.get(),
                     &recording_.place(of.uses.front().stay)});
  }
  HARMONY_ASSIGN_OR_RETURN(const PageView view, PageView::Map(parts));
  const model::ParamBlock& block = model_.blocks[static_cast<size_t>(action.work.block)];
  std::vector<float*> gradients;
  for (size_t i = 0; i < parts.size(); ++i) {
    gradients.push_back(reinterpret_cast<float*>(view.part(i).data()));
  }
  Count(operation, action.traffic,
        ReducePart(gradients, own,
                   static_cast<size_t>(block.accumulator_bytes.count()) / sizeof(float)));
  return absl::OkStatus();
}

VirtualRun Trainer::Result(const LaneTimes& times) const {
  VirtualRun run{.steps = {}, .paced = times.paced, .overruns = times.overruns};
  const baselines::Timeline& timeline = simulation_.timeline;
  const int replicas = job_.baseline->data_parallel ? static_cast<int>(devices_.size()) : 1;
  for (int s = 0; s < job_.setting.steps; ++s) {
    const auto at = static_cast<size_t>(s);
    VirtualStep& step = run.steps.emplace_back();
    std::vector<double> losses;
    for (const command::LossSlot& slot : losses_[at]) losses.push_back(slot.loss_sum);
    step.loss = model::SumOfMicrobatches(losses, replicas) / static_cast<double>(labels_[at]);
    const Nanos before = s > 0 ? times.step_end[at - 1] : Nanos();
    const Nanos modelled_before = s > 0 ? timeline.StepEnd(s - 1) : Nanos();
    step.seconds = (times.step_end[at] - before).seconds();
    step.modelled_seconds = (timeline.StepEnd(s) - modelled_before).seconds();
    step.modelled = timeline.BytesOf(s);
    for (const std::vector<baselines::StepBytes>& lane : moved_) {
      for (size_t traffic = 0; traffic < baselines::kTrafficClasses; ++traffic) {
        step.moved.h2d[traffic] += lane[at].h2d[traffic];
        step.moved.d2h[traffic] += lane[at].d2h[traffic];
        step.moved.p2p[traffic] += lane[at].p2p[traffic];
      }
    }
    for (const Device& device : devices_) {
      step.update_seconds = std::max(step.update_seconds, device.update_seconds[at]);
    }
  }
  return run;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VirtualTrainer>> VirtualTrainer::Create(const VirtualJob& job) {
  auto trainer = std::make_unique<Trainer>(job);
  HARMONY_RETURN_IF_ERROR(trainer->Prepare());
  return trainer;
}

}  // namespace harmony::bench
