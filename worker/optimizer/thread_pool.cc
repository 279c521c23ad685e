#include "worker/optimizer/thread_pool.h"

namespace harmony {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Drain(const std::function<void(int64_t)>& fn, int64_t count) {
  for (int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) fn(i);
}

void ThreadPool::ParallelFor(int64_t count, const std::function<void(int64_t)>& fn) {
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fn_ = &fn;
    count_ = count;
    next_.store(0);
    running_ = static_cast<int>(workers_.size());
    ++round_;
  }
  start_.notify_all();
  Drain(fn, count);
  std::unique_lock<std::mutex> lock(mutex_);
  finish_.wait(lock, [this] { return running_ == 0; });
}

void ThreadPool::WorkerLoop() {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    const std::function<void(int64_t)>* fn = fn_;
    const int64_t count = count_;
    lock.unlock();
    Drain(*fn, count);
    lock.lock();
    if (--running_ == 0) finish_.notify_one();
  }
}

}  // namespace harmony
