#pragma once

// A loop on all cores.

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace harmony::bench {

// Runs body(0..count-1), begun in this order, and returns when all have ended.
inline void ForEach(int count, const std::function<void(int)>& body) {
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) body(i);
  };
  const int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  std::vector<std::thread> others;
  for (int t = 1; t < std::min(threads, count); ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace harmony::bench
