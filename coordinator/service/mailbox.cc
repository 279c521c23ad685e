#include "coordinator/service/mailbox.h"

#include <memory>
#include <utility>

namespace harmony::service {

void Mailbox::Post(std::function<void()> message) {
  MutexLock lock(mutex_);
  if (closed_) return;
  queue_.push_back(std::move(message));
  changed_.NotifyOne();
}

bool Mailbox::PostAndWait(const std::function<void()>& message) {
  // Shared: when the mailbox closes, this call returns before the queue is destroyed.
  auto done = std::make_shared<bool>(false);
  MutexLock lock(mutex_);
  if (closed_) return false;
  queue_.push_back([this, done, &message] {
    message();
    MutexLock inner(mutex_);
    *done = true;
    done_.NotifyAll();
  });
  changed_.NotifyOne();
  // Closed and idle: it was dropped. Closed but busy: it may be the one that is being run.
  while (!*done && !(closed_ && idle_)) done_.Wait(mutex_);
  return *done;
}

void Mailbox::Run(std::chrono::milliseconds interval, const std::function<void()>& on_tick) {
  auto next_tick = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  while (!closed_) {
    while (!closed_ && queue_.empty() && changed_.WaitUntil(mutex_, next_tick)) {
    }
    if (closed_) break;
    std::function<void()> message;
    if (!queue_.empty()) {
      message = std::move(queue_.front());
      queue_.pop_front();
    }
    idle_ = false;
    lock.Unlock();
    if (message) message();
    message = nullptr;
    if (std::chrono::steady_clock::now() >= next_tick) {
      on_tick();
      next_tick = std::chrono::steady_clock::now() + interval;
    }
    lock.Lock();
    idle_ = true;
  }
  queue_.clear();
  done_.NotifyAll();
}

void Mailbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyOne();
  done_.NotifyAll();
}

}  // namespace harmony::service
