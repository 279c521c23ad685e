#include "coordinator/paper/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace harmony::paper {

void ParallelFor(int threads, int count, const std::function<void(int)>& body) {
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < std::min(threads, count); ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace harmony::paper
