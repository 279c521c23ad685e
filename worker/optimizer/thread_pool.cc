#include "worker/optimizer/thread_pool.h"

namespace harmony::worker {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  start_.NotifyAll();
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
    MutexLock lock(mutex_);
    fn_ = &fn;
    count_ = count;
    next_.store(0);
    running_ = static_cast<int>(workers_.size());
    ++round_;
  }
  start_.NotifyAll();
  Drain(fn, count);
  MutexLock lock(mutex_);
  while (running_ != 0) finish_.Wait(mutex_);
}

void ThreadPool::WorkerLoop() {
  uint64_t seen = 0;
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && round_ == seen) start_.Wait(mutex_);
    if (stop_) return;
    seen = round_;
    const std::function<void(int64_t)>* fn = fn_;
    const int64_t count = count_;
    lock.Unlock();
    Drain(*fn, count);
    lock.Lock();
    if (--running_ == 0) finish_.NotifyOne();
  }
}

}  // namespace harmony::worker
