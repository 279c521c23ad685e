#include "swapper/transfer/pinned_arena.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace harmony::swapper {

absl::Status PinnedArena::Pin(Bytes extent) {
  Unpin();
  for (Bytes done; done < extent; done += kChunk) {
    std::byte* const chunk = arena_ + done.count();
    const Bytes size = std::min(kChunk, extent - done);
    // For every context of this process.
    const CUresult result = driver_.MemHostRegister(chunk, static_cast<size_t>(size.count()),
                                                    CU_MEMHOSTREGISTER_PORTABLE);
    const absl::Status status =
        driver_.Check(result, absl::StrCat("pinning ", FormatBytesExact(size), " of the arena"));
    if (absl::IsUnavailable(status)) return status;
    if (!status.ok()) {
      spdlog::warn("{} of {} of the arena are pinned, and copies of the rest are slower: {}",
                   FormatBytes(done), FormatBytes(extent), std::string(status.message()));
      return absl::OkStatus();
    }
    chunks_.push_back(chunk);
  }
  return absl::OkStatus();
}

void PinnedArena::Unpin() {
  for (std::byte* chunk : chunks_) driver_.MemHostUnregister(chunk);
  chunks_.clear();
}

}  // namespace harmony::swapper
