#pragma once

// A small fixed pool for loops over chunks. Threads sleep while there is nothing to do (no
// spinning, no OpenMP), so they cost the device workers on the same cores nothing.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace harmony::worker {

// Owned and used by one thread at a time.
class ThreadPool {
 public:
  // `threads` counts the caller, which works too: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(i) for each i in [0, count), each once, on any thread, in ascending order per thread;
  // returns when all have returned.
  void ParallelFor(int64_t count, const std::function<void(int64_t)>& fn);

 private:
  void WorkerLoop();
  void Drain(const std::function<void(int64_t)>& fn, int64_t count);

  Mutex mutex_;
  CondVar start_, finish_;
  const std::function<void(int64_t)>* fn_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> next_ = 0;
  std::vector<std::thread> workers_;  // constant after construction
};

}  // namespace harmony::worker
