#include "common/command/command.h"

#include "absl/strings/str_cat.h"
#include "common/command/lane_kinds.h"

namespace harmony::command {
namespace {

std::string EndpointText(const Endpoint& end) {
  return end.device < 0 ? absl::StrCat("arena+", end.offset.count())
                        : absl::StrCat("device", end.device, "+", end.offset.count());
}

const char* KindName(TaskKind kind) {
  static constexpr const char* kNames[] = {"forward", "backward", "forward_backward"};
  return kNames[static_cast<int>(kind)];
}

const char* KindName(HostTaskKind kind) {
  static constexpr const char* kNames[] = {"initialize", "load_batch", "step_scalars", "norm",
                                           "clip",       "update",     "checkpoint"};
  return kNames[static_cast<int>(kind)];
}

std::string BodyText(const ComputeTask& task) {
  std::string text = absl::StrCat(KindName(task.kind), " layers ", task.layers.first, "-",
                                  task.layers.last, " microbatch ", task.microbatch);
  for (const WeightBinding& weight : task.weights) {
    absl::StrAppend(&text, " w", weight.reference, "@", weight.offset.count());
  }
  for (const WeightBinding& gradient : task.gradients) {
    absl::StrAppend(&text, " g", gradient.reference, "@", gradient.offset.count());
  }
  if (task.replica > 0) {
    absl::StrAppend(&text, " replica ", task.replica, " stride ", task.gradient_stride.count());
  }
  if (task.input) absl::StrAppend(&text, " in@", task.input->count());
  for (const OutputBinding& output : task.outputs) {
    absl::StrAppend(&text, " out", output.boundary, "@", output.offset.count());
  }
  if (task.output_gradient) absl::StrAppend(&text, " dy@", task.output_gradient->count());
  if (task.kept) absl::StrAppend(&text, " kept@", task.kept->count());
  if (task.input_gradient) absl::StrAppend(&text, " dx@", task.input_gradient->count());
  for (const InputBinding& input : task.inputs) {
    absl::StrAppend(&text, " batch", input.input, "@", input.offset.count());
  }
  if (task.loss) absl::StrAppend(&text, " loss@", task.loss->count());
  return text;
}

std::string BodyText(const Transfer& transfer) {
  std::string text =
      absl::StrCat("copy ", ToString(transfer.traffic), " ", transfer.size.count(), " B ",
                   EndpointText(transfer.source), " -> ", EndpointText(transfer.destination));
  if (transfer.expect) {
    absl::StrAppend(&text, " expect ", transfer.expect->record, "=", transfer.expect->version);
  }
  if (transfer.commit) {
    absl::StrAppend(&text, " commit ", DebugString(transfer.commit->key), "=",
                    transfer.commit->version);
  }
  for (int record : transfer.retire) absl::StrAppend(&text, " retire ", record);
  return text;
}

std::string BodyText(const HostTask& task) {
  std::string text = KindName(task.kind);
  if (task.block >= 0) absl::StrAppend(&text, " block ", task.block);
  for (int record : task.gradient_records) absl::StrAppend(&text, " gradient ", record);
  return text;
}

}  // namespace

std::string DebugString(const Lane& lane) {
  const char* name = TraitsOf(lane.kind).name;
  return IsHostLane(lane) ? name : absl::StrCat(name, lane.device);
}

bool IsHostLane(const Lane& lane) { return IsHostKind(lane.kind); }

int LaneTable::size() const {
  return num_devices_ * kDeviceLaneKinds + kLaneKinds - kDeviceLaneKinds;
}

int LaneTable::IndexOf(const Lane& lane) const {
  const int kind = static_cast<int>(lane.kind);
  if (IsHostKind(lane.kind)) return (num_devices_ - 1) * kDeviceLaneKinds + kind;
  return lane.device * kDeviceLaneKinds + kind;
}

Lane LaneTable::LaneAt(int index) const {
  const int host = index - num_devices_ * kDeviceLaneKinds;
  if (host >= 0) return {static_cast<LaneKind>(kDeviceLaneKinds + host), 0};
  return {static_cast<LaneKind>(index % kDeviceLaneKinds), index / kDeviceLaneKinds};
}

const char* ToString(TrafficClass traffic) {
  static constexpr const char* kNames[] = {"weights",  "gradients", "stash", "boundary_commit",
                                           "boundary", "tokens",    "loss",  "recovery"};
  return kNames[static_cast<int>(traffic)];
}

std::string DebugString(const Command& command) {
  const CommandHeader& header = command.header;
  std::string text = absl::StrCat(
      "#", header.id, " step ", header.step, " lane ", header.lane, "=", header.signal_value, " ",
      std::visit([](const auto& b) { return BodyText(b); }, command.body));
  for (const SemaphoreWait& wait : header.waits) {
    absl::StrAppend(&text, " after ", wait.semaphore, ">=", wait.value);
  }
  const auto* task = std::get_if<ComputeTask>(&command.body);
  if (task != nullptr && !task->gradient_waits.empty()) {
    absl::StrAppend(&text, " gradients after ", task->gradient_waits.front().semaphore,
                    ">=", task->gradient_waits.back().value, "...",
                    task->gradient_waits.front().value);
  }
  return text;
}

model::BackwardTask BackwardTaskOf(const ComputeTask& task) {
  return task.kind == TaskKind::kForwardBackward ? model::BackwardTask::kFused
         : task.kept                             ? model::BackwardTask::kKept
                                                 : model::BackwardTask::kRecomputes;
}

std::vector<SemaphoreWait> AllWaits(const Command& command) {
  std::vector<SemaphoreWait> waits = command.header.waits;
  if (const auto* task = std::get_if<ComputeTask>(&command.body)) {
    waits.insert(waits.end(), task->gradient_waits.begin(), task->gradient_waits.end());
  }
  return waits;
}

}  // namespace harmony::command
