#pragma once

// One lane as its executor sees it: a strict FIFO of commands of one generation. PURE: values in,
// decisions out; the thread that executes the lane owns the copying, computing and signalling.
// Workers, host worker, swapper and the simulator use the same class. Not thread-safe: the caller
// holds its lock.
//
//   Start(g) -> Push(g, c1), Push(g, c2), ... -> Head() -> BeginHead() -> FinishHead() -> ...
//   Quiesce(): what runs may finish (its effects on devices are forgotten by everyone), what is
//   queued is dropped; nothing is accepted until Start of a higher generation.

#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "common/command/command.h"

namespace harmony::command {

class LaneQueue {
 public:
  explicit LaneQueue(int lane) : lane_(lane) {}

  // Begins a generation: values count from 1 again. REQUIRES: !running(). FailedPrecondition when
  // `generation` is not above the last one started.
  absl::Status Start(uint32_t generation);

  // Takes the next command of the lane. Aborted: it belongs to another generation, or the lane is
  // quiesced (drop it, not an error of anyone). Internal: another lane's, or not the next value.
  absl::Status Push(uint32_t generation, Command command);

  // The command to run next once its waits are satisfied; null when there is none, or one runs.
  const Command* Head() const { return running_ || queue_.empty() ? nullptr : &queue_.front(); }
  // The one that runs, or null.
  const Command* Running() const { return running_ ? &queue_.front() : nullptr; }
  void BeginHead() { running_ = true; }  // REQUIRES: Head() != nullptr
  // The command that ran has completed: the value to signal, or 0 when the lane was quiesced
  // meanwhile (then nothing is signalled). REQUIRES: running().
  uint64_t FinishHead();

  void Quiesce();
  bool running() const { return running_; }
  bool quiesced() const { return !accepting_; }
  uint32_t generation() const { return generation_; }
  int lane() const { return lane_; }
  size_t size() const { return queue_.size(); }

 private:
  int lane_;
  uint32_t generation_ = 0;
  bool accepting_ = false;
  bool running_ = false;
  uint64_t next_value_ = 1;
  std::deque<Command> queue_;  // the front one is running when running_
};

}  // namespace harmony::command
