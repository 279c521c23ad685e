#pragma once

// All memory that outlives the processes that work on it.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/launcher/cluster.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/service_manager.h"

namespace harmony::client {

struct Memory {
  ipc::UniqueFd segment;
  ipc::UniqueFd kept_lines;  // outlives the coordinators that write it
  std::vector<ipc::UniqueFd> devices;
};

// Call from the main thread, which starts processes (MakeDeviceRegions).
absl::StatusOr<Memory> MakeMemory(const std::string& bin_dir, const Cluster& cluster);

// Its descriptors with names by which they are told apart elsewhere ("segment", "device-0").
absl::Status ForEachDescriptor(const Memory& memory,
                               const std::function<absl::Status(const std::string&, int)>& visit);
// The other way round; takes what it knows out of `descriptors`. DataLoss names what is missing.
absl::StatusOr<Memory> MemoryOf(std::vector<ipc::NamedFd>& descriptors);

}  // namespace harmony::client
