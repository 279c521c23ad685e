#pragma once

// A device's memory for real: so many bytes and no more, given out in pages that need not lie
// together, as the virtual memory of a GPU's driver has it.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/baselines/engine/recording.h"
#include "common/base/units.h"
#include "common/ipc/fd_passing.h"

namespace harmony::bench {

inline constexpr int64_t kPage = 4096;

// Several threads use it, on pages that they do not share at a time.
class DevicePages {
 public:
  // REQUIRES: a multiple of kPage. ResourceExhausted: the system has no room.
  static absl::StatusOr<std::unique_ptr<DevicePages>> Create(Bytes memory);
  ~DevicePages();
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  // The pages are the stay's now; whoever had one of them has lost it.
  void Begin(baselines::Stay stay, const baselines::StayPlace& place);
  // Internal when the stay lacks one of its pages: what lay there is not in the device's memory.
  absl::Status CheckResident(baselines::Stay stay, const baselines::StayPlace& place) const;

  // To and from its first bytes; the bytes that were copied. REQUIRES: it has room for them.
  Bytes Write(const baselines::StayPlace& place, absl::Span<const std::byte> from);
  Bytes Read(const baselines::StayPlace& place, absl::Span<std::byte> to) const;

 private:
  friend class PageView;
  DevicePages(ipc::UniqueFd memory, std::byte* data, Bytes size);

  const ipc::UniqueFd memory_;
  std::byte* const data_;
  const Bytes size_;
  std::vector<baselines::Stay> owner_;  // by page
};

// Stays in the memory of devices, each in one piece of this process's address space.
class PageView {
 public:
  struct Part {
    const DevicePages* pages = nullptr;
    const baselines::StayPlace* place = nullptr;
  };
  // All must outlive it. ResourceExhausted: the system has no room for the mappings.
  static absl::StatusOr<PageView> Map(absl::Span<const Part> parts);
  PageView(PageView&& other) noexcept;
  PageView& operator=(PageView&&) = delete;
  ~PageView();

  // Of a part: its bytes, from a page's beginning.
  absl::Span<std::byte> part(size_t index) const { return parts_[index]; }

 private:
  PageView() = default;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::vector<absl::Span<std::byte>> parts_;
};

}  // namespace harmony::bench
