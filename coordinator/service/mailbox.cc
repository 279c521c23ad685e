#include "coordinator/service/mailbox.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace harmony::service {
namespace {

// How much longer than a question took the next one waits.
constexpr int kPauseFactor = 9;
// Some that took longer, on a slow disk or because this process was stopped, say nothing of the
// next.
constexpr std::chrono::milliseconds kLongestPause{500};
// Where messages do not end, questions are answered all the same.
constexpr std::chrono::milliseconds kPatience{100};

}  // namespace

void Mailbox::Post(std::function<void()> message) {
  MutexLock lock(mutex_);
  if (closed_) return;
  messages_.push_back(std::move(message));
  changed_.NotifyOne();
}

bool Mailbox::Ask(const std::function<void()>& question) {
  // Shared: when the mailbox closes, this call returns before the queue is destroyed.
  auto done = std::make_shared<bool>(false);
  MutexLock lock(mutex_);
  if (closed_) return false;
  questions_.push_back({std::chrono::steady_clock::now(), [this, done, &question] {
                          question();
                          MutexLock inner(mutex_);
                          *done = true;
                          done_.NotifyAll();
                        }});
  changed_.NotifyOne();
  // Closed and idle: it was dropped. Closed but busy: it may be the one that is being run.
  while (!*done && !(closed_ && idle_)) done_.Wait(mutex_);
  return *done;
}

std::function<void()> Mailbox::Next(Time now, bool* question) {
  const bool may_ask = !questions_.empty() && now >= next_question_;
  *question = may_ask && (messages_.empty() || now - questions_.front().asked > kPatience);
  std::function<void()> next;
  if (*question) {
    next = std::move(questions_.front().run);
    questions_.pop_front();
  } else if (!messages_.empty()) {
    next = std::move(messages_.front());
    messages_.pop_front();
  }
  return next;
}

void Mailbox::Run(std::chrono::milliseconds interval, const std::function<void()>& on_tick) {
  Time next_tick = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  while (!closed_) {
    Time now = std::chrono::steady_clock::now();
    bool question = false;
    std::function<void()> next = Next(now, &question);
    if (next == nullptr && now < next_tick) {
      changed_.WaitUntil(mutex_,
                         questions_.empty() ? next_tick : std::min(next_tick, next_question_));
      continue;
    }
    idle_ = false;
    lock.Unlock();
    if (next != nullptr) next();
    next = nullptr;
    const Time done = std::chrono::steady_clock::now();
    if (done >= next_tick) {
      on_tick();
      next_tick = std::chrono::steady_clock::now() + interval;
    }
    lock.Lock();
    if (question)
      next_question_ = done + std::min<Time::duration>(kPauseFactor * (done - now), kLongestPause);
    idle_ = true;
  }
  messages_.clear();
  questions_.clear();
  done_.NotifyAll();
}

void Mailbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyOne();
  done_.NotifyAll();
}

}  // namespace harmony::service
