#pragma once

// Which parts of a span of memory are in use: the bookkeeping of a workspace's allocator, whatever
// the memory. PURE.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/units.h"

namespace harmony::worker {

// Best fit, the lowest offset among equals, neighbours coalesced, in whole slots. The same sequence
// of calls gives the same offsets. The caller serialises.
class BestFit {
 public:
  // What is no whole slot at the end is not used.
  explicit BestFit(Bytes capacity);

  // The offset of so many bytes; none when no hole is large enough.
  std::optional<Bytes> Take(Bytes size);
  // Whether something was taken there, which is free now.
  bool Give(Bytes offset);

  struct Usage {
    Bytes capacity;
    Bytes current;      // in use now
    Bytes peak;         // the most since the last ResetPeak
    Bytes peak_extent;  // one past the highest byte in use since then: what a span would need
    Bytes largest_free;
  };
  Usage usage() const;
  void ResetPeak();

 private:
  void AddFree(int64_t offset, int64_t size);
  void RemoveFree(int64_t offset, int64_t size);

  const int64_t capacity_;
  std::map<int64_t, int64_t> used_;  // offset -> size
  // offset -> size, never adjacent; and (size, offset)
  std::map<int64_t, int64_t> free_by_offset_;
  std::set<std::pair<int64_t, int64_t>> free_by_size_;
  int64_t current_ = 0, peak_ = 0, peak_extent_ = 0;
};

// What to say when Take found no hole.
std::string OutOfMemoryText(Bytes wanted, const BestFit::Usage& usage);

}  // namespace harmony::worker
