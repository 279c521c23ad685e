#pragma once

// The one thread that owns all of the coordinator's state. Others hand it closures and, when they
// need an answer, wait for it; nothing else is shared.

#include <chrono>
#include <deque>
#include <functional>

#include "common/base/mutex.h"

namespace harmony::service {

class Mailbox {
 public:
  // Queues `message`; dropped once the mailbox is closed. Any thread.
  void Post(std::function<void()> message);

  // Runs `message` on the loop's thread and returns when it has run. False: the mailbox was closed
  // before, and it has not run. Any thread but the loop's own.
  bool PostAndWait(const std::function<void()>& message);

  // The loop: runs messages in order on the calling thread, and `on_tick` at least every
  // `interval`, until Close() has been called; what is queued then is dropped.
  void Run(std::chrono::milliseconds interval, const std::function<void()>& on_tick);

  // Ends Run after the message that is being run. Any thread.
  void Close();

 private:
  Mutex mutex_;
  CondVar changed_;  // queue_ or closed_
  CondVar done_;     // a PostAndWait has been served, or the mailbox was closed
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;  // no message is being run
};

}  // namespace harmony::service
