#include "swapper/transfer/pinned_arena.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ipc/prefault.h"

namespace harmony::swapper {

absl::Status PinnedArena::Pin(Bytes extent, absl::FunctionRef<void()> on_chunk) {
  HARMONY_RETURN_IF_ERROR(Unpin());
  ipc::Prefault ahead;  // of the driver, which would give one page after another its memory
  ahead.Start(arena_, extent);
  for (Bytes done; done < extent; done += chunk_) {
    std::byte* const chunk = arena_ + done.count();
    const Bytes size = std::min(chunk_, extent - done);
    // For every context of this process.
    const CUresult result = driver_.MemHostRegister(chunk, static_cast<size_t>(size.count()),
                                                    CU_MEMHOSTREGISTER_PORTABLE);
    const absl::Status status =
        driver_.Check(result, absl::StrCat("pinning ", FormatBytesExact(size), " of the arena"));
    // The device would copy from and to pages that the arena no longer has.
    if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
      return absl::UnavailableError(status.message());
    }
    if (absl::IsUnavailable(status)) return status;
    if (!status.ok()) {
      spdlog::warn("{} of {} of the arena are pinned, and copies of the rest are slower: {}",
                   FormatBytes(done), FormatBytes(extent), std::string(status.message()));
      return absl::OkStatus();
    }
    chunks_.push_back(chunk);
    on_chunk();
  }
  return absl::OkStatus();
}

absl::Status PinnedArena::Unpin() {
  absl::Status all;
  for (std::byte* chunk : chunks_) {
    const CUresult result = driver_.MemHostUnregister(chunk);
    if (result == CUDA_SUCCESS) continue;
    all.Update(absl::UnavailableError(driver_.Check(result, "unpinning the arena").message()));
  }
  chunks_.clear();
  return all;
}

}  // namespace harmony::swapper
