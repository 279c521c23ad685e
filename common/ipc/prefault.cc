#include "common/ipc/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <stop_token>
#include <system_error>

namespace harmony::ipc {
namespace {

constexpr int64_t kChunk = int64_t{16} << 20;  // a thread's between two looks at its stop token
// As many as there were cores where it was measured (33 GB in 10 s, one thread over 18 s); more
// were not tried.
constexpr int64_t kMostThreads = 16;

}  // namespace

bool MapPages(std::byte* data, Bytes size) {
  return madvise(data, static_cast<size_t>(size.count()), MADV_POPULATE_WRITE) == 0;
}

void Prefault::Start(std::byte* data, Bytes size) {
  Stop();
  taken_ = 0;
  const int64_t cores = std::min<int64_t>(std::thread::hardware_concurrency(), kMostThreads);
  const int64_t chunks = (size.count() + kChunk - 1) / kChunk;
  for (int64_t i = 0; i < std::min(std::max<int64_t>(cores, 1), chunks); ++i) {
    const auto run = [this, data, size](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const int64_t at = taken_.fetch_add(kChunk);
        if (at >= size.count()) return;
        if (!MapPages(data + at, Bytes(std::min(kChunk, size.count() - at)))) taken_ = size.count();
      }
    };
    try {
      threads_.emplace_back(run);
    } catch (const std::system_error&) {
      return;  // as many threads as the system gives
    }
  }
}

void Prefault::Stop() {
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();  // joins them
}

}  // namespace harmony::ipc
