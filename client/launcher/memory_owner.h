#pragma once

// `harmony own-memory`: the launcher's memory without the launcher, for processes that are units of
// systemd (deploy/systemd).

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/launcher/cluster.h"
#include "client/launcher/runtime_dir.h"

namespace harmony::client {

struct MemoryOwnerOptions {
  RuntimePaths paths;
  std::string bin_dir;
  // Asked only when memory is to be made.
  std::function<absl::StatusOr<Cluster>()> cluster;
};

// Makes the memory, has the service manager keep it, and hands it to each process of this user that
// is about to start (handover.h), counting its incarnations; keeps the list of processes. Returns
// when SIGTERM or SIGINT comes.
//
// One that is started again by the service manager, because it died or hung, gets the memory back,
// and goes on with it: nobody else notices. The manager lets go of it when the service has stopped.
absl::Status OwnMemory(const MemoryOwnerOptions& options);

}  // namespace harmony::client
