#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/units.h"
#include "common/cuda/driver.h"

namespace harmony::swapper {

// The arena's memory as the CUDA driver has it pinned: registered in chunks, from the arena's
// beginning on, that no copy may span. They are not large, for one call that pins very much can
// fail or hold other processes' use of the GPU up for seconds.
//
// Where the system refuses to pin, copies work all the same, through buffers of the driver's, at
// about half the speed: that is said in the log, once for each job.
class PinnedArena {
 public:
  static constexpr Bytes kChunk{int64_t{256} << 20};

  // `chunk`: whole pages.
  PinnedArena(const cuda::Driver& driver, std::byte* arena, Bytes chunk)
      : driver_(driver), arena_(arena), chunk_(chunk) {}
  ~PinnedArena() { (void)Unpin(); }

  // For both a context is current, and no copy of the arena is under way. Unavailable: the device
  // is lost, or does not let go of memory; then this process has to end, which does.

  // Pins the first `extent` bytes, and nothing else of the arena. `on_chunk` is called after each
  // chunk: a large arena takes minutes.
  absl::Status Pin(Bytes extent, absl::FunctionRef<void()> on_chunk);
  // Before the arena's pages are given back: the device would go on using those it knows.
  absl::Status Unpin();

  // How many bytes from `offset` on one copy may take: those up to the end of a chunk.
  Bytes LongestFrom(Bytes offset) const { return chunk_ - Bytes(offset.count() % chunk_.count()); }

 private:
  const cuda::Driver& driver_;
  std::byte* const arena_;
  const Bytes chunk_;
  std::vector<std::byte*> chunks_;
};

}  // namespace harmony::swapper
