#include "common/ipc/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace harmony::ipc {
namespace {

constexpr int64_t kChunk = int64_t{16} << 20;  // between two looks at the stop token

}  // namespace

void MapPages(std::byte* data, Bytes size, const std::stop_token& stop) {
  for (int64_t at = 0; at < size.count() && !stop.stop_requested(); at += kChunk) {
    const size_t length = static_cast<size_t>(std::min(kChunk, size.count() - at));
    if (madvise(data + at, length, MADV_POPULATE_WRITE) != 0) return;
  }
}

void Prefault::Start(std::byte* data, Bytes size) {
  Stop();
  thread_ = std::jthread([data, size](const std::stop_token& stop) { MapPages(data, size, stop); });
}

void Prefault::Stop() { thread_ = {}; }  // asks it to stop, and joins it

}  // namespace harmony::ipc
