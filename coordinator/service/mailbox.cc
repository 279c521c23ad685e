#include "coordinator/service/mailbox.h"

#include <memory>
#include <utility>

namespace harmony {

void Mailbox::Post(std::function<void()> message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  queue_.push_back(std::move(message));
  changed_.notify_one();
}

bool Mailbox::PostAndWait(const std::function<void()>& message) {
  // Shared: when the mailbox closes, this call returns before the queue is destroyed.
  auto done = std::make_shared<bool>(false);
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) return false;
  queue_.push_back([this, done, &message] {
    message();
    std::lock_guard<std::mutex> inner(mutex_);
    *done = true;
    done_.notify_all();
  });
  changed_.notify_one();
  // Closed and idle: it was dropped. Closed but busy: it may be the one that is being run.
  done_.wait(lock, [&] { return *done || (closed_ && idle_); });
  return *done;
}

void Mailbox::Run(std::chrono::milliseconds interval, const std::function<void()>& on_tick) {
  auto next_tick = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    changed_.wait_until(lock, next_tick, [&] { return closed_ || !queue_.empty(); });
    if (closed_) break;
    std::function<void()> message;
    if (!queue_.empty()) {
      message = std::move(queue_.front());
      queue_.pop_front();
    }
    idle_ = false;
    lock.unlock();
    if (message) message();
    message = nullptr;
    if (std::chrono::steady_clock::now() >= next_tick) {
      on_tick();
      next_tick = std::chrono::steady_clock::now() + interval;
    }
    lock.lock();
    idle_ = true;
  }
  queue_.clear();
  done_.notify_all();
}

void Mailbox::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_one();
  done_.notify_all();
}

}  // namespace harmony
