#include "swapper/transfer/sim_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace harmony::swapper {
namespace {

// One memcpy of megabytes leaves the cached path of the C library; pieces of this size kept it and
// were 20% faster between shared mappings (22 against 18 GB/s; streaming stores gave 23).
constexpr size_t kCopyPiece = 256 * 1024;

// Of each end of a device's memory, what is made present before it is used.
constexpr Bytes kPresentEnd(int64_t{64} << 20);
constexpr int64_t kPage = 4096;

void CopyBytes(std::byte* to, const std::byte* from, Bytes size) {
  size_t left = static_cast<size_t>(size.count());
  while (left > 0) {
    const size_t piece = std::min(left, kCopyPiece);
    std::memcpy(to, from, piece);
    to += piece;
    from += piece;
    left -= piece;
  }
}

}  // namespace

SimCopier::SimCopier(std::byte* arena, std::vector<plan::DeviceSpec> devices,
                     std::vector<ipc::MappedRegion> regions, std::vector<int> of_devices)
    : arena_(arena),
      devices_(std::move(devices)),
      regions_(std::move(regions)),
      of_devices_(std::move(of_devices)) {}

Bytes SimCopier::MemoryOf(int device) const { return regions_[static_cast<size_t>(device)].size(); }

std::byte* SimCopier::At(const SlotRange& range) const {
  std::byte* const begin =
      range.device < 0 ? arena_ : regions_[static_cast<size_t>(range.device)].data();
  return begin + range.offset.count();
}

absl::Status SimCopier::Run(const Copy& copy) {
  CopyBytes(At(copy.destination), At(copy.source), copy.source.size);
  return absl::OkStatus();
}

absl::Status SimCopier::BeginJob(const plan::Plan& plan, Bytes extent) {
  for (const int device : of_devices_) {
    const auto d = static_cast<size_t>(device);
    if (d >= plan.devices.size() || !devices_[d].paced()) continue;
    const Bytes resident = std::min(plan.devices[d].resident, regions_[d].size());
    const Bytes end = std::min(kPresentEnd, resident);
    const Bytes top((resident - end).count() / kPage * kPage);
    ipc::MapPages(regions_[d].data(), end);
    ipc::MapPages(regions_[d].data() + top.count(), resident - top);
  }
  prefault_.Start(arena_, extent);
  return absl::OkStatus();
}

absl::Status SimCopier::EndJob() {
  prefault_.Stop();
  return absl::OkStatus();
}

}  // namespace harmony::swapper
