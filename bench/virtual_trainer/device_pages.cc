#include "bench/virtual_trainer/device_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::bench {

using baselines::Extent;
using baselines::Stay;
using baselines::StayPlace;

namespace {

Bytes SizeOf(const StayPlace& place) {
  Bytes size;
  for (const Extent& extent : place.extents) size += extent.size;
  return size;
}

absl::Status NoRoom(const char* what, Bytes size) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " ", FormatBytes(size), ": ", std::strerror(errno)));
}

// Calls `copy` with each piece of the first `size` bytes: where it lies in the device's memory,
// where among them, and how much it is.
template <typename Copy>
Bytes ForEachPiece(const StayPlace& place, size_t size, Copy&& copy) {
  size_t done = 0;
  for (const Extent& extent : place.extents) {
    const size_t part = std::min(size - done, static_cast<size_t>(extent.size.count()));
    copy(extent.offset.count(), done, part);
    done += part;
  }
  return Bytes(static_cast<int64_t>(done));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DevicePages>> DevicePages::Create(Bytes memory) {
  ipc::UniqueFd file(memfd_create("virtual-device", MFD_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), memory.count()) != 0) {
    return NoRoom("making a device's memory of", memory);
  }
  void* const data = mmap(nullptr, static_cast<size_t>(memory.count()), PROT_READ | PROT_WRITE,
                          MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return NoRoom("mapping a device's memory of", memory);
  return std::unique_ptr<DevicePages>(
      new DevicePages(std::move(file), static_cast<std::byte*>(data), memory));
}

DevicePages::DevicePages(ipc::UniqueFd memory, std::byte* data, Bytes size)
    : memory_(std::move(memory)),
      data_(data),
      size_(size),
      owner_(static_cast<size_t>(size.count() / kPage), baselines::kNoStay) {}

DevicePages::~DevicePages() { munmap(data_, static_cast<size_t>(size_.count())); }

void DevicePages::Begin(Stay stay, const StayPlace& place) {
  for (const Extent& extent : place.extents) {
    const auto first = owner_.begin() + extent.offset.count() / kPage;
    std::fill(first, first + extent.size.count() / kPage, stay);
  }
}

absl::Status DevicePages::CheckResident(Stay stay, const StayPlace& place) const {
  for (const Extent& extent : place.extents) {
    const auto first = owner_.begin() + extent.offset.count() / kPage;
    if (std::all_of(first, first + extent.size.count() / kPage,
                    [&](Stay owner) { return owner == stay; })) {
      continue;
    }
    return absl::InternalError(
        absl::StrCat("what is used is not in the memory of device ", place.device));
  }
  return absl::OkStatus();
}

Bytes DevicePages::Write(const StayPlace& place, absl::Span<const std::byte> from) {
  return ForEachPiece(place, from.size(), [&](int64_t at, size_t done, size_t part) {
    std::memcpy(data_ + at, from.data() + done, part);
  });
}

Bytes DevicePages::Read(const StayPlace& place, absl::Span<std::byte> to) const {
  return ForEachPiece(place, to.size(), [&](int64_t at, size_t done, size_t part) {
    std::memcpy(to.data() + done, data_ + at, part);
  });
}

absl::StatusOr<PageView> PageView::Map(absl::Span<const Part> parts) {
  PageView view;
  Bytes size;
  for (const Part& part : parts) size += SizeOf(*part.place);
  if (size.count() == 0) {
    view.parts_.resize(parts.size());
    return view;
  }
  void* const reserved = mmap(nullptr, static_cast<size_t>(size.count()), PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return NoRoom("reserving addresses for", size);
  view.data_ = static_cast<std::byte*>(reserved);
  view.size_ = static_cast<size_t>(size.count());
  std::byte* at = view.data_;
  for (const Part& part : parts) {
    std::byte* const begin = at;
    for (const Extent& extent : part.place->extents) {
      const auto length = static_cast<size_t>(extent.size.count());
      if (mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
               part.pages->memory_.get(), extent.offset.count()) == MAP_FAILED) {
        return NoRoom("mapping pages of a device,", extent.size);
      }
      at += length;
    }
    view.parts_.emplace_back(begin, static_cast<size_t>(at - begin));
  }
  return view;
}

PageView::PageView(PageView&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      parts_(std::move(other.parts_)) {}

PageView::~PageView() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace harmony::bench
