#include "common/rpc/command_codec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/wire_fields.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::rpc {
namespace {

static_assert(v1::TaskKind_MAX == static_cast<int>(command::TaskKind::kForwardBackward));
static_assert(v1::HostTaskKind_MAX == static_cast<int>(command::HostTaskKind::kCheckpoint));
static_assert(v1::TrafficClass_MAX == static_cast<int>(command::TrafficClass::kRecovery));
static_assert(v1::ObjectKind_MAX == command::kObjectKinds - 1);
static_assert(v1::UpdateMode_MAX == static_cast<int>(job::UpdateMode::kDeferred));

using Bindings = google::protobuf::RepeatedPtrField<v1::Binding>;

// ---- Compute ----

// The places of a compute task's tensors: each may be absent, which is not the same as 0.
struct TensorPlace {
  const char* name;
  std::optional<Bytes> command::ComputeTask::*ours;
  bool (v1::ComputeTask::*has)() const;
  int64_t (v1::ComputeTask::*get)() const;
  void (v1::ComputeTask::*set)(int64_t);
};
#define HARMONY_PLACE(name)                                                                   \
  {                                                                                           \
#name, &command::ComputeTask::name, &v1::ComputeTask::has_##name, &v1::ComputeTask::name, \
        &v1::ComputeTask::set_##name                                                          \
  }
constexpr TensorPlace kTensorPlaces[] = {HARMONY_PLACE(input), HARMONY_PLACE(kept),
                                         HARMONY_PLACE(output_gradient),
                                         HARMONY_PLACE(input_gradient), HARMONY_PLACE(loss)};
#undef HARMONY_PLACE

// Of things with a number and a place.
template <typename Binding>
void EncodeBindings(const std::vector<Binding>& bindings, Bindings* wire) {
  for (const auto& [id, offset] : bindings) {
    v1::Binding* out = wire->Add();
    out->set_id(id);
    out->set_offset(offset.count());
  }
}

template <typename Binding>
std::vector<Binding> DecodeBindings(const Bindings& wire, absl::string_view field,
                                    WireFields& read) {
  std::vector<Binding> bindings;
  for (const v1::Binding& in : wire) {
    bindings.push_back({read.Index(in.id(), field), read.Size(in.offset(), field)});
  }
  return bindings;
}

using Waits = google::protobuf::RepeatedPtrField<v1::Wait>;

void EncodeWaits(const std::vector<command::SemaphoreWait>& waits, Waits* wire) {
  for (const command::SemaphoreWait& wait : waits) {
    v1::Wait* out = wire->Add();
    out->set_semaphore(wait.semaphore);
    out->set_value(wait.value);
  }
}

std::vector<command::SemaphoreWait> DecodeWaits(const Waits& wire) {
  std::vector<command::SemaphoreWait> waits;
  for (const v1::Wait& wait : wire) waits.push_back({wait.semaphore(), wait.value()});
  return waits;
}

void EncodeBody(const command::ComputeTask& task, v1::Command* command) {
  v1::ComputeTask* wire = command->mutable_compute();
  wire->set_kind(ToWire<v1::TaskKind>(task.kind));
  wire->set_first_layer(task.layers.first);
  wire->set_last_layer(task.layers.last);
  wire->set_microbatch(task.microbatch);
  wire->set_samples(task.samples);
  EncodeBindings(task.weights, wire->mutable_weights());
  EncodeBindings(task.gradients, wire->mutable_gradients());
  wire->set_gradient_stride(task.gradient_stride.count());
  EncodeWaits(task.gradient_waits, wire->mutable_gradient_waits());
  wire->set_awaits_sums(task.awaited == model::Awaited::kSums);
  wire->set_first_microbatch(task.first_microbatch);
  wire->set_last_microbatch(task.last_microbatch);
  wire->set_replica(task.replica);
  wire->set_stores_gradients(task.stores_gradients);
  EncodeBindings(task.outputs, wire->mutable_outputs());
  EncodeBindings(task.inputs, wire->mutable_inputs());
  for (const TensorPlace& place : kTensorPlaces) {
    const std::optional<Bytes>& offset = task.*place.ours;
    if (offset) (wire->*place.set)(offset->count());
  }
  wire->set_total_labels(task.total_labels);
}

command::ComputeTask Decode(const v1::ComputeTask& wire, WireFields& read) {
  command::ComputeTask task;
  task.kind = read.Enumerator<command::TaskKind>(wire.kind(), "compute.kind");
  task.layers.first = read.Index(wire.first_layer(), "first_layer");
  task.layers.last = read.AtLeast(task.layers.first, wire.last_layer(), "last_layer");
  task.microbatch = read.Index(wire.microbatch(), "microbatch");
  task.samples = read.AtLeast(1, wire.samples(), "samples");
  task.weights = DecodeBindings<command::WeightBinding>(wire.weights(), "weights", read);
  task.gradients = DecodeBindings<command::WeightBinding>(wire.gradients(), "gradients", read);
  task.gradient_stride = Bytes(wire.gradient_stride());
  task.gradient_waits = DecodeWaits(wire.gradient_waits());
  if (!task.gradient_waits.empty() && task.gradient_waits.size() != task.gradients.size()) {
    read.Wrong("gradient_waits", std::ssize(task.gradient_waits));
  }
  if (wire.awaits_sums()) task.awaited = model::Awaited::kSums;
  task.first_microbatch = wire.first_microbatch();
  task.last_microbatch = wire.last_microbatch();
  task.replica = read.Index(wire.replica(), "replica");
  task.stores_gradients = wire.stores_gradients();
  task.outputs = DecodeBindings<command::OutputBinding>(wire.outputs(), "outputs", read);
  task.inputs = DecodeBindings<command::InputBinding>(wire.inputs(), "inputs", read);
  for (const TensorPlace& place : kTensorPlaces) {
    if ((wire.*place.has)()) task.*place.ours = read.Size((wire.*place.get)(), place.name);
  }
  task.total_labels = read.AtLeast(0, wire.total_labels(), "total_labels");
  return task;
}

// ---- Transfers ----

void EncodeBody(const command::Transfer& transfer, v1::Command* command) {
  v1::Transfer* wire = command->mutable_transfer();
  wire->set_source_device(transfer.source.device);
  wire->set_source_offset(transfer.source.offset.count());
  wire->set_destination_device(transfer.destination.device);
  wire->set_destination_offset(transfer.destination.offset.count());
  wire->set_size(transfer.size.count());
  wire->set_traffic(ToWire<v1::TrafficClass>(transfer.traffic));
  if (transfer.commit) {
    wire->set_commit_record(transfer.commit->record);
    wire->set_commit_kind(ToWire<v1::ObjectKind>(transfer.commit->key.kind));
    wire->set_commit_index(transfer.commit->key.index);
    wire->set_commit_number(transfer.commit->key.number);
    wire->set_commit_version(transfer.commit->version);
  }
  if (transfer.expect) {
    wire->set_expect_record(transfer.expect->record);
    wire->set_expect_version(transfer.expect->version);
  }
  for (int record : transfer.retire) wire->add_retire(record);
}

command::Transfer Decode(const v1::Transfer& wire, WireFields& read) {
  command::Transfer transfer;
  transfer.source = {read.AtLeast(-1, wire.source_device(), "source_device"),
                     read.Size(wire.source_offset(), "source_offset")};
  transfer.destination = {read.AtLeast(-1, wire.destination_device(), "destination_device"),
                          read.Size(wire.destination_offset(), "destination_offset")};
  transfer.size = read.Size(wire.size(), "size");
  transfer.traffic = read.Enumerator<command::TrafficClass>(wire.traffic(), "traffic");
  if (wire.has_commit_record()) {
    command::Commit& commit = transfer.commit.emplace();
    commit.record = read.Index(wire.commit_record(), "commit_record");
    commit.key.kind = read.Enumerator<command::ObjectKind>(wire.commit_kind(), "commit_kind");
    commit.key.index = read.Index(wire.commit_index(), "commit_index");
    commit.key.number = read.Index(wire.commit_number(), "commit_number");
    commit.version = wire.commit_version();
  }
  if (wire.has_expect_record()) {
    transfer.expect = {read.Index(wire.expect_record(), "expect_record"), wire.expect_version()};
  }
  for (int32_t record : wire.retire()) transfer.retire.push_back(read.Index(record, "retire"));
  return transfer;
}

// ---- Host tasks ----

void EncodeBody(const command::HostTask& task, v1::Command* command) {
  v1::HostTask* wire = command->mutable_host();
  wire->set_kind(ToWire<v1::HostTaskKind>(task.kind));
  wire->set_block(task.block);
  wire->set_offset(task.offset.count());
  for (int record : task.gradient_records) wire->add_gradient_records(record);
}

command::HostTask Decode(const v1::HostTask& wire, WireFields& read) {
  command::HostTask task;
  task.kind = read.Enumerator<command::HostTaskKind>(wire.kind(), "host.kind");
  task.block = read.AtLeast(-1, wire.block(), "block");
  task.offset = read.Size(wire.offset(), "offset");
  for (int32_t record : wire.gradient_records()) {
    task.gradient_records.push_back(read.Index(record, "gradient_records"));
  }
  return task;
}

absl::Status DecodeBody(const v1::Command& wire, WireFields& read, command::Command* command) {
  switch (wire.body_case()) {
    case v1::Command::kCompute:
      command->body = Decode(wire.compute(), read);
      return read.status();
    case v1::Command::kTransfer:
      command->body = Decode(wire.transfer(), read);
      return read.status();
    case v1::Command::kHost:
      command->body = Decode(wire.host(), read);
      return read.status();
    case v1::Command::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("no body");
}

// ---- Plans ----

void EncodeGroups(const std::vector<plan::LayerGroup>& groups,
                  google::protobuf::RepeatedPtrField<v1::Group>* wire) {
  for (const plan::LayerGroup& group : groups) {
    v1::Group* out = wire->Add();
    out->set_first_layer(group.layers.first);
    out->set_last_layer(group.layers.last);
    for (int device : group.devices) out->add_devices(device);
    out->set_keep_weights(group.keep_weights);
    out->set_keep_stash(group.keep_stash);
    out->set_keep_activations(group.keep_activations);
    out->set_gradient_parts(group.gradient_parts);
  }
}

// A divisor of `whole`; 0, as of an older plan, is 1.
int DecodeDivisor(int raw, int whole, absl::string_view field, WireFields& read) {
  const int divisor = raw == 0 ? 1 : raw;
  if (divisor < 1 || whole % divisor != 0) read.Wrong(field, raw);
  return divisor;
}

// Those of a group, each there, their number a divisor of the replicas. A plan of before groups
// could have several names one, or none where each device runs all groups.
plan::DeviceSet DecodeDevices(const v1::Group& in, const v1::Plan& wire, int replicas,
                              absl::string_view field, WireFields& read) {
  const auto check = [&](int device) {
    if (device < 0 || device >= wire.devices_size()) {
      read.Wrong(absl::StrCat(field, ".devices"), device);
    }
    return device;
  };
  if (in.devices_size() == 0) {
    if (wire.mode() != v1::PARALLEL_DATA) return plan::DeviceSet(check(in.device()));
    return plan::DeviceSet::All(wire.devices_size(), replicas);
  }
  if (wire.devices_size() > limits::kMostDevices || in.devices_size() > replicas) {
    read.Wrong(absl::StrCat(field, ".devices"), std::max(wire.devices_size(), in.devices_size()));
    return {};
  }
  for (int device : in.devices()) check(device);
  if (replicas % in.devices_size() != 0) {
    read.Wrong(absl::StrCat(field, ".devices"), in.devices_size());
  }
  return plan::DeviceSet::Of(in.devices());
}

// Groups must follow each other without a gap.
std::vector<plan::LayerGroup> DecodeGroups(
    const google::protobuf::RepeatedPtrField<v1::Group>& groups_wire, const v1::Plan& wire,
    int replicas, absl::string_view field, WireFields& read) {
  std::vector<plan::LayerGroup> groups;
  int next = 0;
  for (const v1::Group& in : groups_wire) {
    if (in.first_layer() != next || in.last_layer() < in.first_layer()) {
      read.Wrong(absl::StrCat(field, ".first_layer"), in.first_layer());
    }
    const int parts = in.gradient_parts() == 0 ? replicas : in.gradient_parts();
    groups.push_back(
        {{in.first_layer(), in.last_layer()},
         DecodeDevices(in, wire, replicas, field, read),
         in.keep_weights(),
         in.keep_stash(),
         in.keep_activations(),
         DecodeDivisor(parts, replicas, absl::StrCat(field, ".gradient_parts"), read)});
    next = in.last_layer() + 1;
  }
  return groups;
}

}  // namespace

void EncodeCommand(const command::Command& command, v1::Command* wire) {
  const command::CommandHeader& header = command.header;
  wire->set_id(header.id);
  wire->set_lane(header.lane);
  wire->set_signal_value(header.signal_value);
  EncodeWaits(header.waits, wire->mutable_waits());
  wire->set_step(header.step);
  wire->set_expected_ns(header.expected.count());
  std::visit([&](const auto& body) { EncodeBody(body, wire); }, command.body);
}

absl::StatusOr<command::Command> DecodeCommand(const v1::Command& wire) {
  command::Command command;
  WireFields read;
  command.header.id = wire.id();
  command.header.lane = wire.lane();
  command.header.signal_value = wire.signal_value();
  command.header.waits = DecodeWaits(wire.waits());
  command.header.step = read.AtLeast(-1, wire.step(), "step");
  command.header.expected = Nanos(wire.expected_ns());
  if (wire.signal_value() == 0) read.Wrong("signal_value", 0);
  HARMONY_RETURN_IF_ERROR_CTX(DecodeBody(wire, read, &command),
                              absl::StrCat("command ", wire.id()));
  return command;
}

void EncodePlan(const plan::Plan& plan, v1::Plan* wire) {
  wire->set_num_microbatches(plan.num_microbatches);
  wire->set_microbatch_size(plan.microbatch_size);
  wire->set_sequence_length(plan.sequence_length);
  EncodeGroups(plan.forward_groups, wire->mutable_forward_groups());
  EncodeGroups(plan.backward_groups, wire->mutable_backward_groups());
  wire->set_update(ToWire<v1::UpdateMode>(plan.update));
  for (const plan::DevicePlan& device : plan.devices) {
    v1::DevicePlan* out = wire->add_devices();
    out->set_memory(device.memory.count());
    out->set_resident(device.resident.count());
    out->set_root(device.root);
  }
  wire->set_arena_dynamic(plan.arena_dynamic.count());
  wire->set_pass_weights(plan.pass_weights);
  wire->set_pairwise_sums(true);
  wire->set_clip(plan.clip);
  wire->set_optimizer_moments(plan.optimizer_moments);
  wire->set_stream_slots(plan.stream_slots);
  wire->set_gradient_ring(plan.gradient_ring.count());
  wire->set_boundary_banks(plan.boundary_banks);
  wire->set_forward_span(plan.microbatches_per_forward_task);
  wire->set_replicas(plan.replicas);
  wire->set_bf16_gradients(plan.gradient_dtype == DType::kBF16);
}

absl::StatusOr<plan::Plan> DecodePlan(const v1::Plan& wire) {
  plan::Plan plan;
  WireFields read;
  plan.num_microbatches = read.AtLeast(1, wire.num_microbatches(), "num_microbatches");
  plan.microbatch_size = read.AtLeast(1, wire.microbatch_size(), "microbatch_size");
  plan.sequence_length = read.AtLeast(1, wire.sequence_length(), "sequence_length");
  plan.microbatches_per_forward_task =
      DecodeDivisor(wire.forward_span(), plan.num_microbatches, "forward_span", read);
  plan.replicas = DecodeDivisor(wire.replicas(), plan.num_microbatches, "replicas", read);
  for (const v1::DevicePlan& in : wire.devices()) {
    const Bytes resident = read.Size(in.resident(), "devices.resident");
    if (in.memory() < in.resident()) read.Wrong("devices.resident", in.resident());
    plan.devices.push_back({Bytes(in.memory()), resident, in.root()});
  }
  plan.forward_groups =
      DecodeGroups(wire.forward_groups(), wire, plan.replicas, "forward_groups", read);
  plan.backward_groups =
      DecodeGroups(wire.backward_groups(), wire, plan.replicas, "backward_groups", read);
  plan.update = read.Enumerator<job::UpdateMode>(wire.update(), "update");
  if (plan.update == job::UpdateMode::kAuto) read.Wrong("update", wire.update());
  plan.arena_dynamic = read.Size(wire.arena_dynamic(), "arena_dynamic");
  plan.gradient_dtype = wire.bf16_gradients() ? DType::kBF16 : DType::kF32;
  plan.pass_weights = wire.pass_weights();
  plan.clip = wire.clip();
  plan.optimizer_moments = read.Index(wire.optimizer_moments(), "optimizer_moments");
  if (plan.optimizer_moments > 2) read.Wrong("optimizer_moments", wire.optimizer_moments());
  plan.stream_slots = read.AtLeast(1, wire.stream_slots(), "stream_slots");
  plan.boundary_banks = read.AtLeast(1, wire.boundary_banks(), "boundary_banks");
  plan.gradient_ring = read.Size(wire.gradient_ring(), "gradient_ring");
  HARMONY_RETURN_IF_ERROR_CTX(read.status(), "plan");
  job::ResolvedKeys keys = plan.resolved();
  if (plan.replicas > 1 && !wire.pairwise_sums()) keys.sum_order = job::SumOrder::kInTurn;
  HARMONY_RETURN_IF_ERROR_CTX(job::CheckSumOrder(keys), "plan");
  return plan;
}

std::string SerializePlan(const plan::Plan& plan) {
  v1::Plan wire;
  EncodePlan(plan, &wire);
  return wire.SerializeAsString();
}

absl::StatusOr<plan::Plan> ParsePlan(absl::string_view bytes) {
  v1::Plan wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("plan: not a Plan message");
  }
  return DecodePlan(wire);
}

}  // namespace harmony::rpc
