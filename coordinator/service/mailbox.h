#pragma once

// The one thread that owns all of the coordinator's state. Others hand it closures and, when they
// need an answer, wait for it; nothing else is shared.
//
// Messages are what carries a job on: they come from processes and from what was done for the
// loop. Questions are the users', and have a share of the loop's time, however many there are.

#include <chrono>
#include <deque>
#include <functional>

#include "common/base/mutex.h"

namespace harmony::service {

class Mailbox {
 public:
  // Queues `message`; dropped once the mailbox is closed. Any thread.
  void Post(std::function<void()> message);

  // Runs `question` on the loop's thread and returns when it has run. False: the mailbox was closed
  // before, and it has not run. Any thread but the loop's own.
  bool Ask(const std::function<void()>& question);

  // The loop: runs on the calling thread messages in order, then questions in order, and `on_tick`
  // at least every `interval`, until Close() has been called; what is queued then is dropped. A
  // question that took t is followed by the next 9 t later: so they have a tenth of the loop. One
  // that has waited for 100 ms goes before messages.
  void Run(std::chrono::milliseconds interval, const std::function<void()>& on_tick);

  // Ends Run after the message that is being run. Any thread.
  void Close();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Question {
    Time asked;
    std::function<void()> run;
  };
  // What is to be run now, a question or not; empty: nothing is.
  std::function<void()> Next(Time now, bool* question) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;  // what is queued, or closed_
  CondVar done_;     // an Ask has been served, or the mailbox was closed
  std::deque<std::function<void()>> messages_ ABSL_GUARDED_BY(mutex_);
  std::deque<Question> questions_ ABSL_GUARDED_BY(mutex_);
  Time next_question_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;  // no message is being run
};

}  // namespace harmony::service
