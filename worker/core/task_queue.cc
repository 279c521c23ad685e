#include "worker/core/task_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony {

TaskQueue::TaskQueue(uint32_t incarnation, const std::vector<int>& lanes, Bytes resident)
    : incarnation_(incarnation), resident_(resident) {
  lanes_.reserve(lanes.size());
  for (int lane : lanes) lanes_.emplace_back(lane);
}

absl::Status TaskQueue::Start(uint32_t generation) {
  for (LaneQueue& lane : lanes_) HARMONY_RETURN_IF_ERROR(lane.Start(generation));
  return absl::OkStatus();
}

absl::Status TaskQueue::Push(uint32_t generation, uint32_t incarnation,
                             std::vector<Command> commands) {
  if (incarnation != incarnation_) {
    return absl::AbortedError(
        absl::StrCat("commands for incarnation ", incarnation, ", this is ", incarnation_));
  }
  for (Command& command : commands) {
    const auto lane = std::find_if(lanes_.begin(), lanes_.end(), [&](const LaneQueue& queue) {
      return queue.lane() == static_cast<int>(command.header.lane);
    });
    if (lane == lanes_.end()) {
      return absl::InternalError(
          absl::StrCat("not a lane of this process: ", DebugString(command)));
    }
    HARMONY_RETURN_IF_ERROR(CheckBindings(command));
    HARMONY_RETURN_IF_ERROR(lane->Push(generation, std::move(command)));
  }
  return absl::OkStatus();
}

void TaskQueue::Quiesce() {
  for (LaneQueue& lane : lanes_) lane.Quiesce();
}

bool TaskQueue::quiet() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const LaneQueue& lane) { return lane.quiesced() && !lane.running(); });
}

LaneQueue& TaskQueue::lane(int index) {
  return *std::find_if(lanes_.begin(), lanes_.end(),
                       [index](const LaneQueue& queue) { return queue.lane() == index; });
}

absl::Status TaskQueue::CheckBindings(const Command& command) const {
  const auto* task = std::get_if<ComputeTask>(&command.body);
  if (task == nullptr) return absl::OkStatus();
  bool good = true;
  auto check = [&](Bytes offset) {
    good =
        good && offset.count() >= 0 && offset < resident_ && offset.count() % kSlotAlignment == 0;
  };
  auto check_optional = [&](const std::optional<Bytes>& offset) {
    if (offset) check(*offset);
  };
  for (const WeightBinding& weight : task->weights) check(weight.offset);
  for (const WeightBinding& gradient : task->gradients) check(gradient.offset);
  for (const OutputBinding& output : task->outputs) check(output.offset);
  check_optional(task->input);
  check_optional(task->output_gradient);
  check_optional(task->input_gradient);
  check_optional(task->tokens);
  check_optional(task->labels);
  check_optional(task->loss);
  if (good) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a binding is outside of the resident region (",
                                          resident_.count(), " bytes): ", DebugString(command)));
}

}  // namespace harmony
