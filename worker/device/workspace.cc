#include "worker/device/workspace.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace harmony::worker {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

absl::StatusOr<Workspace> Workspace::Map(Bytes size) {
  const Bytes mapped(size.count() + kHugePage);
  void* address = mmap(nullptr, static_cast<size_t>(mapped.count()), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping a workspace of ", FormatBytesExact(size)));
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t aligned = (start + kHugePage - 1) & ~static_cast<uintptr_t>(kHugePage - 1);
  std::byte* data = static_cast<std::byte*>(address) + (aligned - start);
  madvise(address, static_cast<size_t>(mapped.count()), MADV_DONTDUMP);
  // Only a hint: without huge pages it works all the same.
  madvise(data, static_cast<size_t>(size.count()), MADV_HUGEPAGE);
  return Workspace(static_cast<std::byte*>(address), mapped, data, size);
}

Workspace::Workspace(Workspace&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(other.mapped_),
      data_(other.data_),
      size_(other.size_) {}

Workspace::~Workspace() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_.count()));
}

}  // namespace harmony::worker
