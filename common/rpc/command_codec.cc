#include "common/rpc/command_codec.h"

#include <optional>
#include <utility>

#include "common/base/status.h"
#include "harmony/v1/attach.pb.h"

namespace harmony {
namespace {

absl::Status Bad(absl::string_view field, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value));
}

// Reads an enumerator given as a number; the last value of the enumeration bounds it.
template <typename Enum>
absl::Status ReadEnum(int32_t raw, Enum last, absl::string_view field, Enum* value) {
  if (raw < 0 || raw > static_cast<int32_t>(last)) return Bad(field, raw);
  *value = static_cast<Enum>(raw);
  return absl::OkStatus();
}

absl::Status ReadOffset(int64_t raw, absl::string_view field, Bytes* value) {
  if (raw < 0) return Bad(field, raw);
  *value = Bytes(raw);
  return absl::OkStatus();
}

absl::Status ReadOptionalOffset(bool present, int64_t raw, absl::string_view field,
                                std::optional<Bytes>* value) {
  if (!present) return absl::OkStatus();
  Bytes offset;
  HARMONY_RETURN_IF_ERROR(ReadOffset(raw, field, &offset));
  *value = offset;
  return absl::OkStatus();
}

absl::Status ReadIndex(int32_t raw, absl::string_view field, int* value) {
  if (raw < 0) return Bad(field, raw);
  *value = raw;
  return absl::OkStatus();
}

// ---- Compute ----

void EncodeBindings(const std::vector<WeightBinding>& bindings,
                    google::protobuf::RepeatedPtrField<v1::Binding>* wire) {
  for (const WeightBinding& binding : bindings) {
    v1::Binding* out = wire->Add();
    out->set_id(binding.use);
    out->set_offset(binding.offset.count());
  }
}

absl::Status DecodeBindings(const google::protobuf::RepeatedPtrField<v1::Binding>& wire,
                            absl::string_view field, std::vector<WeightBinding>* bindings) {
  for (const v1::Binding& in : wire) {
    WeightBinding binding;
    HARMONY_RETURN_IF_ERROR(ReadIndex(in.id(), field, &binding.use));
    HARMONY_RETURN_IF_ERROR(ReadOffset(in.offset(), field, &binding.offset));
    bindings->push_back(binding);
  }
  return absl::OkStatus();
}

void EncodeBody(const ComputeTask& task, v1::Command* command) {
  v1::ComputeTask* wire = command->mutable_compute();
  wire->set_kind(static_cast<int32_t>(task.kind));
  wire->set_first_layer(task.layers.first);
  wire->set_last_layer(task.layers.last);
  wire->set_microbatch(task.microbatch);
  wire->set_samples(task.samples);
  EncodeBindings(task.weights, wire->mutable_weights());
  EncodeBindings(task.gradients, wire->mutable_gradients());
  wire->set_first_microbatch(task.first_microbatch);
  wire->set_last_microbatch(task.last_microbatch);
  for (const OutputBinding& output : task.outputs) {
    v1::Binding* out = wire->add_outputs();
    out->set_id(output.boundary);
    out->set_offset(output.offset.count());
  }
  if (task.input) wire->set_input(task.input->count());
  if (task.kept) wire->set_kept(task.kept->count());
  if (task.output_gradient) wire->set_output_gradient(task.output_gradient->count());
  if (task.input_gradient) wire->set_input_gradient(task.input_gradient->count());
  if (task.tokens) wire->set_tokens(task.tokens->count());
  if (task.labels) wire->set_labels(task.labels->count());
  if (task.loss) wire->set_loss(task.loss->count());
  wire->set_total_labels(task.total_labels);
}

absl::Status DecodeComputeOffsets(const v1::ComputeTask& wire, ComputeTask* task) {
  HARMONY_RETURN_IF_ERROR(
      ReadOptionalOffset(wire.has_input(), wire.input(), "input", &task->input));
  HARMONY_RETURN_IF_ERROR(ReadOptionalOffset(wire.has_kept(), wire.kept(), "kept", &task->kept));
  HARMONY_RETURN_IF_ERROR(ReadOptionalOffset(wire.has_output_gradient(), wire.output_gradient(),
                                             "output_gradient", &task->output_gradient));
  HARMONY_RETURN_IF_ERROR(ReadOptionalOffset(wire.has_input_gradient(), wire.input_gradient(),
                                             "input_gradient", &task->input_gradient));
  HARMONY_RETURN_IF_ERROR(
      ReadOptionalOffset(wire.has_tokens(), wire.tokens(), "tokens", &task->tokens));
  HARMONY_RETURN_IF_ERROR(
      ReadOptionalOffset(wire.has_labels(), wire.labels(), "labels", &task->labels));
  return ReadOptionalOffset(wire.has_loss(), wire.loss(), "loss", &task->loss);
}

absl::StatusOr<ComputeTask> DecodeCompute(const v1::ComputeTask& wire) {
  ComputeTask task;
  HARMONY_RETURN_IF_ERROR(
      ReadEnum(wire.kind(), TaskKind::kForwardBackward, "compute.kind", &task.kind));
  HARMONY_RETURN_IF_ERROR(ReadIndex(wire.first_layer(), "first_layer", &task.layers.first));
  HARMONY_RETURN_IF_ERROR(ReadIndex(wire.last_layer(), "last_layer", &task.layers.last));
  if (task.layers.count() < 1) return Bad("last_layer", wire.last_layer());
  HARMONY_RETURN_IF_ERROR(ReadIndex(wire.microbatch(), "microbatch", &task.microbatch));
  if (wire.samples() < 1) return Bad("samples", wire.samples());
  task.samples = wire.samples();
  HARMONY_RETURN_IF_ERROR(DecodeBindings(wire.weights(), "weights", &task.weights));
  HARMONY_RETURN_IF_ERROR(DecodeBindings(wire.gradients(), "gradients", &task.gradients));
  task.first_microbatch = wire.first_microbatch();
  task.last_microbatch = wire.last_microbatch();
  for (const v1::Binding& in : wire.outputs()) {
    OutputBinding output;
    HARMONY_RETURN_IF_ERROR(ReadIndex(in.id(), "outputs", &output.boundary));
    HARMONY_RETURN_IF_ERROR(ReadOffset(in.offset(), "outputs", &output.offset));
    task.outputs.push_back(output);
  }
  HARMONY_RETURN_IF_ERROR(DecodeComputeOffsets(wire, &task));
  if (wire.total_labels() < 0) return Bad("total_labels", wire.total_labels());
  task.total_labels = wire.total_labels();
  return task;
}

// ---- Transfers ----

void EncodeBody(const Transfer& transfer, v1::Command* command) {
  v1::Transfer* wire = command->mutable_transfer();
  wire->set_source_device(transfer.source.device);
  wire->set_source_offset(transfer.source.offset.count());
  wire->set_destination_device(transfer.destination.device);
  wire->set_destination_offset(transfer.destination.offset.count());
  wire->set_size(transfer.size.count());
  wire->set_traffic(static_cast<int32_t>(transfer.traffic));
  if (transfer.commit) {
    wire->set_commit_record(transfer.commit->record);
    wire->set_commit_kind(static_cast<int32_t>(transfer.commit->key.kind));
    wire->set_commit_index(transfer.commit->key.index);
    wire->set_commit_microbatch(transfer.commit->key.microbatch);
    wire->set_commit_version(transfer.commit->version);
  }
  if (transfer.expect) {
    wire->set_expect_record(transfer.expect->record);
    wire->set_expect_version(transfer.expect->version);
  }
  for (int record : transfer.retire) wire->add_retire(record);
}

absl::Status DecodeCommit(const v1::Transfer& wire, Transfer* transfer) {
  Commit commit;
  HARMONY_RETURN_IF_ERROR(ReadIndex(wire.commit_record(), "commit_record", &commit.record));
  HARMONY_RETURN_IF_ERROR(
      ReadEnum(wire.commit_kind(), ObjectKind::kNorm, "commit_kind", &commit.key.kind));
  HARMONY_RETURN_IF_ERROR(ReadIndex(wire.commit_index(), "commit_index", &commit.key.index));
  HARMONY_RETURN_IF_ERROR(
      ReadIndex(wire.commit_microbatch(), "commit_microbatch", &commit.key.microbatch));
  commit.version = wire.commit_version();
  transfer->commit = commit;
  return absl::OkStatus();
}

absl::StatusOr<Transfer> DecodeTransfer(const v1::Transfer& wire) {
  Transfer transfer;
  if (wire.source_device() < -1) return Bad("source_device", wire.source_device());
  if (wire.destination_device() < -1) return Bad("destination_device", wire.destination_device());
  transfer.source.device = wire.source_device();
  transfer.destination.device = wire.destination_device();
  HARMONY_RETURN_IF_ERROR(
      ReadOffset(wire.source_offset(), "source_offset", &transfer.source.offset));
  HARMONY_RETURN_IF_ERROR(
      ReadOffset(wire.destination_offset(), "destination_offset", &transfer.destination.offset));
  HARMONY_RETURN_IF_ERROR(ReadOffset(wire.size(), "size", &transfer.size));
  HARMONY_RETURN_IF_ERROR(
      ReadEnum(wire.traffic(), TrafficClass::kRecovery, "traffic", &transfer.traffic));
  if (wire.has_commit_record()) HARMONY_RETURN_IF_ERROR(DecodeCommit(wire, &transfer));
  if (wire.has_expect_record()) {
    Expect expect;
    HARMONY_RETURN_IF_ERROR(ReadIndex(wire.expect_record(), "expect_record", &expect.record));
    expect.version = wire.expect_version();
    transfer.expect = expect;
  }
  for (int32_t record : wire.retire()) {
    HARMONY_RETURN_IF_ERROR(ReadIndex(record, "retire", &transfer.retire.emplace_back()));
  }
  return transfer;
}

// ---- Host tasks ----

void EncodeBody(const HostTask& task, v1::Command* command) {
  v1::HostTask* wire = command->mutable_host();
  wire->set_kind(static_cast<int32_t>(task.kind));
  wire->set_block(task.block);
  wire->set_offset(task.offset.count());
  for (int record : task.gradient_records) wire->add_gradient_records(record);
}

absl::StatusOr<HostTask> DecodeHost(const v1::HostTask& wire) {
  HostTask task;
  HARMONY_RETURN_IF_ERROR(
      ReadEnum(wire.kind(), HostTaskKind::kCheckpoint, "host.kind", &task.kind));
  if (wire.block() < -1) return Bad("block", wire.block());
  task.block = wire.block();
  HARMONY_RETURN_IF_ERROR(ReadOffset(wire.offset(), "offset", &task.offset));
  for (int32_t record : wire.gradient_records()) {
    HARMONY_RETURN_IF_ERROR(
        ReadIndex(record, "gradient_records", &task.gradient_records.emplace_back()));
  }
  return task;
}

absl::Status DecodeBody(const v1::Command& wire, Command* command) {
  switch (wire.body_case()) {
    case v1::Command::kCompute: {
      HARMONY_ASSIGN_OR_RETURN(command->body, DecodeCompute(wire.compute()));
      return absl::OkStatus();
    }
    case v1::Command::kTransfer: {
      HARMONY_ASSIGN_OR_RETURN(command->body, DecodeTransfer(wire.transfer()));
      return absl::OkStatus();
    }
    case v1::Command::kHost: {
      HARMONY_ASSIGN_OR_RETURN(command->body, DecodeHost(wire.host()));
      return absl::OkStatus();
    }
    case v1::Command::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("no body");
}

// ---- Plans ----

void EncodeGroups(const std::vector<LayerGroup>& groups,
                  google::protobuf::RepeatedPtrField<v1::Group>* wire) {
  for (const LayerGroup& group : groups) {
    v1::Group* out = wire->Add();
    out->set_first_layer(group.layers.first);
    out->set_last_layer(group.layers.last);
    out->set_device(group.device);
    out->set_keep_weights(group.keep_weights);
    out->set_keep_stash(group.keep_stash);
    out->set_keep_activations(group.keep_activations);
  }
}

// Groups must follow each other without a gap, and lie on devices there are.
absl::Status DecodeGroups(const google::protobuf::RepeatedPtrField<v1::Group>& wire,
                          int num_devices, absl::string_view field,
                          std::vector<LayerGroup>* groups) {
  int next = 0;
  for (const v1::Group& in : wire) {
    if (in.first_layer() != next || in.last_layer() < in.first_layer()) {
      return Bad(absl::StrCat(field, ".first_layer"), in.first_layer());
    }
    if (in.device() < 0 || in.device() >= num_devices) {
      return Bad(absl::StrCat(field, ".device"), in.device());
    }
    groups->push_back({{in.first_layer(), in.last_layer()},
                       in.device(),
                       in.keep_weights(),
                       in.keep_stash(),
                       in.keep_activations()});
    next = in.last_layer() + 1;
  }
  return absl::OkStatus();
}

absl::Status DecodeBuffers(const v1::Plan& wire, Plan* plan) {
  if (wire.optimizer_moments() < 0 || wire.optimizer_moments() > 2) {
    return Bad("plan: optimizer_moments", wire.optimizer_moments());
  }
  if (wire.stream_slots() < 1) return Bad("plan: stream_slots", wire.stream_slots());
  if (wire.boundary_banks() < 1) return Bad("plan: boundary_banks", wire.boundary_banks());
  plan->optimizer_moments = wire.optimizer_moments();
  plan->stream_slots = wire.stream_slots();
  plan->boundary_banks = wire.boundary_banks();
  return ReadOffset(wire.gradient_ring(), "plan: gradient_ring", &plan->gradient_ring);
}

}  // namespace

void EncodeCommand(const Command& command, v1::Command* wire) {
  const CommandHeader& header = command.header;
  wire->set_id(header.id);
  wire->set_lane(header.lane);
  wire->set_signal_value(header.signal_value);
  for (const SemaphoreWait& wait : header.waits) {
    v1::Wait* out = wire->add_waits();
    out->set_semaphore(wait.semaphore);
    out->set_value(wait.value);
  }
  wire->set_step(header.step);
  wire->set_expected_ns(header.expected.count());
  std::visit([&](const auto& body) { EncodeBody(body, wire); }, command.body);
}

absl::StatusOr<Command> DecodeCommand(const v1::Command& wire) {
  Command command;
  command.header.id = wire.id();
  command.header.lane = wire.lane();
  command.header.signal_value = wire.signal_value();
  for (const v1::Wait& wait : wire.waits()) {
    command.header.waits.push_back({wait.semaphore(), wait.value()});
  }
  command.header.step = wire.step();
  command.header.expected = Nanos(wire.expected_ns());
  absl::Status status = DecodeBody(wire, &command);
  if (status.ok() && wire.signal_value() == 0) status = Bad("signal_value", 0);
  if (status.ok() && wire.step() < -1) status = Bad("step", wire.step());
  if (!status.ok()) return WithContext(status, absl::StrCat("command ", wire.id()));
  return command;
}

void EncodePlan(const Plan& plan, v1::Plan* wire) {
  wire->set_num_microbatches(plan.num_microbatches);
  wire->set_microbatch_size(plan.microbatch_size);
  wire->set_sequence_length(plan.sequence_length);
  EncodeGroups(plan.forward_groups, wire->mutable_forward_groups());
  EncodeGroups(plan.backward_groups, wire->mutable_backward_groups());
  wire->set_update(static_cast<int32_t>(plan.update));
  for (const DevicePlan& device : plan.devices) {
    v1::DevicePlan* out = wire->add_devices();
    out->set_memory(device.memory.count());
    out->set_resident(device.resident.count());
    out->set_root(device.root);
  }
  wire->set_arena_dynamic(plan.arena_dynamic.count());
  wire->set_clip(plan.clip);
  wire->set_optimizer_moments(plan.optimizer_moments);
  wire->set_stream_slots(plan.stream_slots);
  wire->set_gradient_ring(plan.gradient_ring.count());
  wire->set_boundary_banks(plan.boundary_banks);
  wire->set_forward_span(plan.forward_span);
  wire->set_mode(static_cast<int32_t>(plan.mode));
  wire->set_replicas(plan.replicas);
}

absl::StatusOr<Plan> DecodePlan(const v1::Plan& wire) {
  Plan plan;
  if (wire.num_microbatches() < 1) return Bad("plan: num_microbatches", wire.num_microbatches());
  if (wire.microbatch_size() < 1) return Bad("plan: microbatch_size", wire.microbatch_size());
  if (wire.sequence_length() < 1) return Bad("plan: sequence_length", wire.sequence_length());
  plan.forward_span = wire.forward_span() == 0 ? 1 : wire.forward_span();  // 0: an older plan
  if (plan.forward_span < 1 || wire.num_microbatches() % plan.forward_span != 0) {
    return Bad("plan: forward_span", wire.forward_span());
  }
  HARMONY_RETURN_IF_ERROR(ReadEnum(wire.mode(), ParallelMode::kData, "plan: mode", &plan.mode));
  plan.replicas = wire.replicas() == 0 ? 1 : wire.replicas();
  if (plan.replicas < 1 || wire.num_microbatches() % plan.replicas != 0) {
    return Bad("plan: replicas", wire.replicas());
  }
  plan.num_microbatches = wire.num_microbatches();
  plan.microbatch_size = wire.microbatch_size();
  plan.sequence_length = wire.sequence_length();
  for (const v1::DevicePlan& in : wire.devices()) {
    DevicePlan device{Bytes(in.memory()), Bytes(in.resident()), in.root()};
    if (in.resident() < 0 || in.memory() < in.resident()) {
      return Bad("plan: devices.resident", in.resident());
    }
    plan.devices.push_back(device);
  }
  const int num_devices = static_cast<int>(plan.devices.size());
  HARMONY_RETURN_IF_ERROR(DecodeGroups(wire.forward_groups(), num_devices, "plan: forward_groups",
                                       &plan.forward_groups));
  HARMONY_RETURN_IF_ERROR(DecodeGroups(wire.backward_groups(), num_devices, "plan: backward_groups",
                                       &plan.backward_groups));
  HARMONY_RETURN_IF_ERROR(
      ReadEnum(wire.update(), UpdateMode::kDeferred, "plan: update", &plan.update));
  if (plan.update == UpdateMode::kAuto) return Bad("plan: update", wire.update());
  HARMONY_RETURN_IF_ERROR(
      ReadOffset(wire.arena_dynamic(), "plan: arena_dynamic", &plan.arena_dynamic));
  plan.clip = wire.clip();
  HARMONY_RETURN_IF_ERROR(DecodeBuffers(wire, &plan));
  return plan;
}

std::string SerializePlan(const Plan& plan) {
  v1::Plan wire;
  EncodePlan(plan, &wire);
  return wire.SerializeAsString();
}

absl::StatusOr<Plan> ParsePlan(absl::string_view bytes) {
  v1::Plan wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("plan: not a Plan message");
  }
  return DecodePlan(wire);
}

}  // namespace harmony
