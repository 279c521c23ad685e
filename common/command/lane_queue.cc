#include "common/command/lane_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::command {

absl::Status LaneQueue::Start(uint32_t generation) {
  if (generation <= generation_ || running_) {
    return absl::FailedPreconditionError(absl::StrCat("lane ", lane_, ": generation ", generation,
                                                      " cannot start after ", generation_,
                                                      running_ ? " while a command runs" : ""));
  }
  generation_ = generation;
  accepting_ = true;
  next_value_ = 1;
  queue_.clear();
  return absl::OkStatus();
}

absl::Status LaneQueue::Push(uint32_t generation, Command command) {
  if (generation != generation_ || !accepting_) {
    return absl::AbortedError(absl::StrCat("lane ", lane_, ": generation ", generation,
                                           " is not the running one (", generation_, ")"));
  }
  if (static_cast<int>(command.header.lane) != lane_ ||
      command.header.signal_value != next_value_) {
    return absl::InternalError(absl::StrCat("lane ", lane_, ": expected value ", next_value_,
                                            ", got ", DebugString(command)));
  }
  ++next_value_;
  queue_.push_back(std::move(command));
  return absl::OkStatus();
}

uint64_t LaneQueue::FinishHead() {
  const uint64_t value = queue_.front().header.signal_value;
  queue_.pop_front();
  running_ = false;
  return accepting_ ? value : 0;
}

void LaneQueue::Quiesce() {
  accepting_ = false;
  while (queue_.size() > (running_ ? 1U : 0U)) queue_.pop_back();
}

}  // namespace harmony::command
