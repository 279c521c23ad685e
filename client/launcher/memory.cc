#include "client/launcher/memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/launcher/device_memory.h"
#include "common/base/status.h"
#include "common/ipc/segment.h"

namespace harmony::client {
namespace {

constexpr char kSegment[] = "segment", kKeptLines[] = "kept-lines";

std::string DeviceName(size_t device) { return absl::StrCat("device-", device); }

// None when none has the name.
ipc::UniqueFd TakeNamed(std::vector<ipc::NamedFd>& descriptors, const std::string& name) {
  const auto found = std::find_if(descriptors.begin(), descriptors.end(),
                                  [&](const ipc::NamedFd& one) { return one.name == name; });
  if (found == descriptors.end()) return ipc::UniqueFd();
  ipc::UniqueFd fd = std::move(found->fd);
  descriptors.erase(found);
  return fd;
}

}  // namespace

absl::StatusOr<Memory> MakeMemory(const std::string& bin_dir, const Cluster& cluster) {
  HARMONY_ASSIGN_OR_RETURN(const ipc::Segment segment, ipc::Segment::Create(cluster.host_memory));
  Memory memory;
  memory.segment = ipc::UniqueFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
  if (!memory.segment.valid()) return absl::ErrnoToStatus(errno, "keeping the segment");
  memory.kept_lines = ipc::UniqueFd(memfd_create("harmony-kept-lines", MFD_CLOEXEC));
  if (!memory.kept_lines.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  HARMONY_ASSIGN_OR_RETURN(memory.devices, MakeDeviceRegions(bin_dir, cluster.specs));
  return memory;
}

absl::Status ForEachDescriptor(const Memory& memory,
                               const std::function<absl::Status(const std::string&, int)>& visit) {
  HARMONY_RETURN_IF_ERROR(visit(kSegment, memory.segment.get()));
  HARMONY_RETURN_IF_ERROR(visit(kKeptLines, memory.kept_lines.get()));
  for (size_t device = 0; device < memory.devices.size(); ++device) {
    HARMONY_RETURN_IF_ERROR(visit(DeviceName(device), memory.devices[device].get()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Memory> MemoryOf(std::vector<ipc::NamedFd>& descriptors) {
  Memory memory;
  memory.segment = TakeNamed(descriptors, kSegment);
  memory.kept_lines = TakeNamed(descriptors, kKeptLines);
  for (ipc::UniqueFd region;
       (region = TakeNamed(descriptors, DeviceName(memory.devices.size()))).valid();) {
    memory.devices.push_back(std::move(region));
  }
  if (memory.segment.valid() && memory.kept_lines.valid() && !memory.devices.empty()) return memory;
  return absl::DataLossError("not all descriptors of the memory are there");
}

}  // namespace harmony::client
