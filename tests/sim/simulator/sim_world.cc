#include "tests/sim/simulator/sim_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/sum_tree.h"
#include "coordinator/recovery/frontier.h"

namespace harmony::sim {
namespace {

Tag Hidden(int boundary, int m, int64_t step) { return {Content::kActivation, boundary, m, step}; }
Tag GradientOfBoundary(int boundary, int m, int64_t step) {
  return {Content::kBoundaryGradient, boundary, m, step};
}
Tag Kept(const command::ComputeTask& task, int64_t step) {
  return {Content::kKept, task.layers.first, task.microbatch, step};
}
Tag Losses(int part, int64_t step) { return {Content::kLoss, part, -1, step}; }

}  // namespace

SimWorld::SimWorld(const model::ModelSpec& model, const plan::Plan& plan, int64_t first_step)
    : model_(model),
      plan_(plan),
      first_step_(first_step),
      layout_(model, plan),
      table_(model, plan.num_microbatches, plan.replicas),
      lanes_(static_cast<int>(plan.devices.size())),
      arena_(layout_.end()),
      records_(table_.size()),
      in_flight_(lanes_.size()) {
  for (const plan::DevicePlan& device : plan.devices) devices_.emplace_back(device.resident);
  for (int i = 0; i < table_.size(); ++i) records_[i].key = table_.KeyOf(i);
}

absl::Status SimWorld::ExpectClean(const command::ObjectKey& key, int64_t version) const {
  const command::ObjectView& record = records_[table_.IndexOf(key)];
  if (record.state == command::ObjectState::kClean &&
      static_cast<int64_t>(record.version) == version) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(DebugString(key), " has version ", record.version,
                                          " state ", static_cast<int>(record.state),
                                          ", expected clean ", version));
}

absl::Status SimWorld::Start(const command::Command& command) {
  const int64_t step = command.header.step;
  if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
    const int device = lanes_.LaneAt(static_cast<int>(command.header.lane)).device;
    return StartCompute(UserOf(command), *task, step, device);
  }
  if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
    HARMONY_RETURN_IF_ERROR(StartCopy(UserOf(command), *copy));
    auto& carried = in_flight_[command.header.lane];
    carried = MemoryOf(copy->source).Contents(copy->source.offset, copy->size);
    if (copy->commit && copy->commit->key.kind == command::ObjectKind::kLoss) {
      const int part = copy->commit->key.number;
      const int64_t of = static_cast<int64_t>(copy->commit->version) - 1;
      HARMONY_RETURN_IF_ERROR(ReadLoss(copy->source.device, copy->source.offset, part, of));
      carried = {{Bytes(0), copy->size, Losses(part, of)}};
    }
    if (carried.empty()) {
      return absl::InternalError("copies a range that holds no whole object");
    }
    return absl::OkStatus();
  }
  return StartHost(UserOf(command), std::get<command::HostTask>(command.body), step);
}

absl::Status SimWorld::Complete(const command::Command& command) {
  Abort(command);  // ends its uses
  const int64_t step = command.header.step;
  if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
    const int device = lanes_.LaneAt(static_cast<int>(command.header.lane)).device;
    return CompleteCompute(*task, step, device);
  }
  if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
    for (const ShadowMemory::Object& object : in_flight_[command.header.lane]) {
      MemoryOf(copy->destination)
          .Put(copy->destination.offset + object.offset, object.size, object.tag);
    }
    return CompleteCopy(*copy);
  }
  return CompleteHost(std::get<command::HostTask>(command.body), step);
}

void SimWorld::Abort(const command::Command& command) {
  arena_.EndAll(UserOf(command));
  for (ShadowMemory& device : devices_) device.EndAll(UserOf(command));
}

void SimWorld::ForgetDevices() {
  for (ShadowMemory& device : devices_) device.Clear();
}

// ---- Compute ----

absl::Status SimWorld::StartCompute(uint64_t id, const command::ComputeTask& task, int64_t step,
                                    int device) {
  ShadowMemory& memory = devices_[device];
  const int task_microbatches = MicrobatchesOf(task), m = task.microbatch;
  auto read = [&](Bytes at, Bytes size, const Tag& tag) -> absl::Status {
    HARMONY_RETURN_IF_ERROR(memory.BeginRead(id, at, size));
    return memory.Expect(at, size, tag);
  };
  // Of every microbatch that the task runs; `size` and `tag` are of the first.
  auto read_all = [&](Bytes at, Bytes size, Tag tag) -> absl::Status {
    for (int i = 0; i < task_microbatches; ++i) {
      HARMONY_RETURN_IF_ERROR(read(at + size * i, size, tag));
      ++tag.microbatch;
    }
    return absl::OkStatus();
  };
  for (const command::WeightBinding& weight : task.weights) {
    HARMONY_RETURN_IF_ERROR(
        read(weight.offset, WeightSize(weight.reference),
             {Content::kParameter, model_.references[weight.reference].block, 0, step}));
  }
  for (const command::InputBinding& input : task.inputs) {
    HARMONY_RETURN_IF_ERROR(
        read_all(input.offset, layout_.input_bytes(input.input),
                 {Content::kBatchInput, input.input, m * task_microbatches, step}));
  }
  if (task.input) {
    int boundary = task.layers.first;
    if (task.kind == command::TaskKind::kBackward) boundary = std::max(boundary, 1);
    HARMONY_RETURN_IF_ERROR(read_all(*task.input, BoundarySize(boundary),
                                     Hidden(boundary, m * task_microbatches, step)));
  }
  if (task.output_gradient) {
    const int boundary = task.layers.last + 1;
    HARMONY_RETURN_IF_ERROR(read(*task.output_gradient, BoundaryGradientSize(boundary),
                                 GradientOfBoundary(boundary, m, step)));
  }
  if (task.kept) {  // a backward destroys it as it goes
    const Bytes size = KeptBytes(task);
    if (task.kind != command::TaskKind::kForward) {
      HARMONY_RETURN_IF_ERROR(memory.Expect(*task.kept, size, Kept(task, step)));
    }
    HARMONY_RETURN_IF_ERROR(memory.BeginWrite(id, *task.kept, size));
  }
  HARMONY_RETURN_IF_ERROR(CheckPart(task));
  for (const command::WeightBinding& gradient : task.gradients) {
    const bool waits = !task.gradient_waits.empty();
    const bool for_sums = task.awaited == model::Awaited::kSums;
    if (!waits || for_sums) HARMONY_RETURN_IF_ERROR(StartOwnSum(id, task, gradient, step, memory));
    if (!waits) HARMONY_RETURN_IF_ERROR(StartAddition(id, task, gradient, step, memory));
  }
  for (const command::OutputBinding& output : task.outputs) {
    HARMONY_RETURN_IF_ERROR(
        memory.BeginWrite(id, output.offset, BoundarySize(output.boundary) * task_microbatches));
  }
  if (task.input_gradient)
    HARMONY_RETURN_IF_ERROR(
        memory.BeginWrite(id, *task.input_gradient, BoundaryGradientSize(task.layers.first)));
  if (task.loss)
    HARMONY_RETURN_IF_ERROR(memory.BeginWrite(id, *task.loss, Bytes(sizeof(command::LossSlot))));
  return absl::OkStatus();
}

absl::Status SimWorld::CompleteCompute(const command::ComputeTask& task, int64_t step, int device) {
  ShadowMemory& memory = devices_[device];
  const int m = task.microbatch;
  for (const command::WeightBinding& gradient : task.gradients) {
    const Bytes size = AccumulatorSize(gradient.reference);
    const int additions = task.last_microbatch ? model::AdditionsAfter(task.replica) : 0;
    const int buffer = model::WaitingSums(task.replica) - additions;
    const int of_replica = plan_.replica_microbatches();
    const int first = (m / of_replica + 1 - (1 << additions)) * of_replica;
    memory.Put(gradient.offset + task.gradient_stride * buffer,
               task.stores_gradients ? GradientSize(gradient.reference) : size,
               Gradient(gradient.reference, first, m + 1, step));
  }
  for (const command::OutputBinding& output : task.outputs) {
    const Bytes size = BoundarySize(output.boundary);
    for (int i = 0; i < MicrobatchesOf(task); ++i) {
      memory.Put(output.offset + size * i, size,
                 Hidden(output.boundary, m * MicrobatchesOf(task) + i, step));
    }
  }
  if (task.kept && task.kind == command::TaskKind::kForward) {
    memory.Put(*task.kept, KeptBytes(task), Kept(task, step));
  }
  if (task.input_gradient) {
    memory.Put(*task.input_gradient, BoundaryGradientSize(task.layers.first),
               GradientOfBoundary(task.layers.first, m, step));
  }
  if (task.loss) {
    memory.Put(*task.loss, Bytes(sizeof(command::LossSlot)), {Content::kLoss, 0, m, step});
  }
  return absl::OkStatus();
}

// ---- Copies ----

absl::Status SimWorld::ReadLoss(int device, Bytes offset, int part, int64_t step) const {
  const int count = plan_.loss_microbatches();
  for (int m = 0; m < count; ++m) {
    HARMONY_RETURN_IF_ERROR(devices_[device].Expect(offset + Bytes(sizeof(command::LossSlot)) * m,
                                                    Bytes(sizeof(command::LossSlot)),
                                                    {Content::kLoss, 0, part * count + m, step}));
  }
  return absl::OkStatus();
}

absl::Status SimWorld::StartCopy(uint64_t id, const command::Transfer& copy) {
  ShadowMemory& source = MemoryOf(copy.source);
  HARMONY_RETURN_IF_ERROR(source.BeginRead(id, copy.source.offset, copy.size));
  if (copy.expect) {
    const command::ObjectView& record = records_[copy.expect->record];
    HARMONY_RETURN_IF_ERROR(ExpectClean(record.key, static_cast<int64_t>(copy.expect->version)));
    if (copy.source.offset < record.offset ||
        copy.source.offset + copy.size > record.offset + record.size) {
      return absl::InternalError(
          absl::StrCat("reads outside of the data of ", DebugString(record.key)));
    }
  }
  bool own = !copy.commit;
  for (int index : copy.retire) {
    command::ObjectView& record = records_[index];
    own = own || index == copy.commit->record;
    record.state = command::ObjectState::kFree;
  }
  if (!own) return absl::InternalError("commits a record that it does not retire");
  if (copy.destination.device < 0) {
    const Bytes begin = copy.destination.offset, end = begin + copy.size;
    for (const command::ObjectView& record : records_) {
      if (record.state == command::ObjectState::kFree || record.offset >= end ||
          begin >= record.offset + record.size) {
        continue;
      }
      return absl::InternalError(absl::StrCat("overwrites ", DebugString(record.key)));
    }
  }
  return MemoryOf(copy.destination).BeginWrite(id, copy.destination.offset, copy.size);
}

absl::Status SimWorld::CompleteCopy(const command::Transfer& copy) {
  if (copy.source.device < 0 || copy.destination.device < 0) {
    moved_[static_cast<size_t>(copy.traffic)] += copy.size.count();
  }
  if (!copy.commit) return absl::OkStatus();
  const command::ObjectKey& key = copy.commit->key;
  const int64_t step = static_cast<int64_t>(copy.commit->version) - 1;
  Tag tag;
  switch (key.kind) {
    case command::ObjectKind::kGradient:
      tag = PartOf(key.index, key.number, step);
      break;
    case command::ObjectKind::kStash:
      for (int i = 0; i < plan_.microbatches_per_forward_task; ++i) {
        HARMONY_RETURN_IF_ERROR(arena_.Expect(
            copy.destination.offset + BoundarySize(key.index) * i, BoundarySize(key.index),
            Hidden(key.index, key.number * plan_.microbatches_per_forward_task + i, step)));
      }
      break;
    case command::ObjectKind::kBoundaryGradient:
      tag = GradientOfBoundary(key.index, key.number, step);
      break;
    case command::ObjectKind::kLoss:
      tag = Losses(key.number, step);
      break;
    case command::ObjectKind::kParameter:
    case command::ObjectKind::kMoment1:
    case command::ObjectKind::kMoment2:
    case command::ObjectKind::kBatch:
    case command::ObjectKind::kStepScalars:
    case command::ObjectKind::kNorm:
      return absl::InternalError(
          absl::StrCat("a copy commits ", DebugString(key), ", which the host worker writes"));
  }
  if (tag.content != Content::kNothing) {
    HARMONY_RETURN_IF_ERROR(arena_.Expect(copy.destination.offset, copy.size, tag));
  }
  records_[copy.commit->record] = {key, copy.destination.offset, copy.size, copy.commit->version,
                                   command::ObjectState::kClean};
  return absl::OkStatus();
}

// ---- Host tasks ----

void SimWorld::SetBlock(int block, uint64_t version, command::ObjectState state) {
  for (command::ObjectKind kind : {command::ObjectKind::kMoment1, command::ObjectKind::kMoment2,
                                   command::ObjectKind::kParameter}) {
    const command::ObjectKey key{kind, block, 0};
    Record(key) = {key, Bytes(), Bytes(), version, state};
    // Moments that the optimizer lacks have records of no size.
    if (static_cast<int>(kind) > plan_.optimizer_moments) continue;
    Record(key).offset = command::PersistentOffset(model_, key);
    Record(key).size = model_.blocks[block].weight_bytes;
  }
}

absl::Status SimWorld::CheckGradients(const command::HostTask& task, int64_t step) const {
  // All parts of all references, in the order that makes the sum.
  const std::vector<int>& references = model_.blocks[task.block].references;
  const int parts = plan::PartsOfBlock(model_, plan_, task.block);
  auto next = task.gradient_records.begin();
  for (auto reference = references.rbegin(); reference != references.rend(); ++reference) {
    for (int part = 0; part < parts; ++part, ++next) {
      const command::ObjectKey key{command::ObjectKind::kGradient, *reference, part};
      if (next == task.gradient_records.end() || *next != table_.IndexOf(key)) {
        return absl::InternalError(absl::StrCat(DebugString(key), " is not where it is summed"));
      }
      const command::ObjectView& record = records_[*next];
      HARMONY_RETURN_IF_ERROR(ExpectClean(key, step + 1));
      HARMONY_RETURN_IF_ERROR(
          arena_.Expect(record.offset, record.size, PartOf(*reference, part, step)));
    }
  }
  if (next == task.gradient_records.end()) return absl::OkStatus();
  return absl::InternalError("sums more gradients than there are");
}

absl::Status SimWorld::CheckLosses(int64_t step) const {
  for (int part = 0; part < plan_.loss_parts(); ++part) {
    HARMONY_RETURN_IF_ERROR(ExpectClean({command::ObjectKind::kLoss, 0, part}, step + 1));
    HARMONY_RETURN_IF_ERROR(
        arena_.Expect(layout_.Loss(part), layout_.loss_bytes(), Losses(part, step)));
  }
  return absl::OkStatus();
}

absl::Status SimWorld::StartHost(uint64_t id, const command::HostTask& task, int64_t step) {
  const int parity = static_cast<int>(step & 1);
  switch (task.kind) {
    case command::HostTaskKind::kInitialize:
      for (size_t b = 0; b < model_.blocks.size(); ++b) {
        SetBlock(static_cast<int>(b), 0, command::ObjectState::kFree);
      }
      return absl::OkStatus();
    case command::HostTaskKind::kLoadBatch:
      Record({command::ObjectKind::kBatch, parity, 0}).state = command::ObjectState::kFree;
      return arena_.BeginWrite(id, layout_.Batch(parity), layout_.batch_bytes());
    case command::HostTaskKind::kStepScalars:
      return CheckLosses(step);
    case command::HostTaskKind::kNorm:
      return CheckGradients(task, step);
    case command::HostTaskKind::kClip:
      for (size_t b = 0; b < model_.blocks.size(); ++b) {
        HARMONY_RETURN_IF_ERROR(
            ExpectClean({command::ObjectKind::kNorm, static_cast<int32_t>(b), 0}, step + 1));
      }
      return ExpectClean({command::ObjectKind::kStepScalars, parity, 0}, step + 1);
    case command::HostTaskKind::kUpdate: {
      HARMONY_RETURN_IF_ERROR(CheckGradients(task, step));
      for (int index : task.gradient_records) {
        HARMONY_RETURN_IF_ERROR(arena_.BeginRead(id, records_[index].offset, records_[index].size));
      }
      HARMONY_RETURN_IF_ERROR(
          ExpectClean({command::ObjectKind::kStepScalars, parity, 0}, step + 1));
      const command::ObjectKey key{command::ObjectKind::kParameter, task.block, 0};
      const bool again = Record(key).state == command::ObjectState::kUpdating &&
                         static_cast<int64_t>(Record(key).version) == step + 1;
      if (!again) HARMONY_RETURN_IF_ERROR(ExpectClean(key, step));
      SetBlock(task.block, static_cast<uint64_t>(step) + 1, command::ObjectState::kUpdating);
      return arena_.BeginWrite(id, command::PersistentOffset(model_, key),
                               model_.blocks[task.block].weight_bytes);
    }
    case command::HostTaskKind::kCheckpoint:
      for (size_t b = 0; b < model_.blocks.size(); ++b) {
        const command::ObjectKey key{command::ObjectKind::kParameter, static_cast<int32_t>(b), 0};
        HARMONY_RETURN_IF_ERROR(ExpectClean(key, step + 1));
        HARMONY_RETURN_IF_ERROR(arena_.BeginRead(id, command::PersistentOffset(model_, key),
                                                 model_.blocks[b].weight_bytes));
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status SimWorld::CompleteHost(const command::HostTask& task, int64_t step) {
  const int parity = static_cast<int>(step & 1);
  const uint64_t version = static_cast<uint64_t>(step) + 1;
  auto commit = [&](const command::ObjectKey& key, Bytes size) {
    Record(key) = {key, task.offset, size, version, command::ObjectState::kClean};
  };
  auto put = [&](int block, int64_t updates) {
    const command::ObjectKey key{command::ObjectKind::kParameter, block, 0};
    arena_.Put(command::PersistentOffset(model_, key), model_.blocks[block].weight_bytes,
               {Content::kParameter, block, 0, updates});
    SetBlock(block, static_cast<uint64_t>(updates), command::ObjectState::kClean);
  };
  switch (task.kind) {
    case command::HostTaskKind::kInitialize:
      for (size_t b = 0; b < model_.blocks.size(); ++b) put(static_cast<int>(b), first_step_);
      break;
    case command::HostTaskKind::kLoadBatch:
      for (int m = 0; m < plan_.num_microbatches; ++m) {
        for (int i = 0; i < static_cast<int>(model_.inputs.size()); ++i) {
          arena_.Put(layout_.Input(parity, i, m), layout_.input_bytes(i),
                     {Content::kBatchInput, i, m, step});
        }
      }
      commit({command::ObjectKind::kBatch, parity, 0}, layout_.batch_bytes());
      break;
    case command::HostTaskKind::kStepScalars:
    case command::HostTaskKind::kClip:
      commit({command::ObjectKind::kStepScalars, parity, 0}, Bytes(sizeof(command::StepScalars)));
      break;
    case command::HostTaskKind::kNorm:
      commit({command::ObjectKind::kNorm, task.block, 0}, Bytes(sizeof(command::NormSlot)));
      break;
    case command::HostTaskKind::kUpdate:
      put(task.block, step + 1);
      break;
    case command::HostTaskKind::kCheckpoint:
      saved_version_ = std::max(saved_version_, step + 1);
      break;
  }
  return absl::OkStatus();
}

absl::Status SimWorld::CheckDerivable() const {
  HARMONY_ASSIGN_OR_RETURN(const recovery::Frontier frontier,
                           recovery::Frontier::FromRecords(table_, records_, first_step_));
  for (int64_t step : {frontier.step(), frontier.step() + 1}) {
    HARMONY_RETURN_IF_ERROR(
        recovery::DeriveStepWork(model_, plan_, layout_, frontier, step).status());
  }
  return absl::OkStatus();
}

absl::Status SimWorld::CheckFinal(int64_t version) const {
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    const command::ObjectKey key{command::ObjectKind::kParameter, static_cast<int32_t>(b), 0};
    HARMONY_RETURN_IF_ERROR(ExpectClean(key, version));
    HARMONY_RETURN_IF_ERROR(arena_.Expect(command::PersistentOffset(model_, key),
                                          model_.blocks[b].weight_bytes,
                                          {Content::kParameter, static_cast<int>(b), 0, version}));
  }
  if (saved_version_ == version) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the last checkpoint has version ", saved_version_, " instead of ", version));
}

}  // namespace harmony::sim
