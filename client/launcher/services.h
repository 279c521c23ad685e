#pragma once

// The processes of one runtime directory: which there are, and what each is started with. Whoever
// starts them: the launcher, or systemd by way of `harmony start-process`.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/launcher/access_options.h"
#include "client/launcher/child_process.h"
#include "client/launcher/memory.h"
#include "client/launcher/runtime_dir.h"

namespace harmony::client {

// One of them.
struct Service {
  std::string role;
  int device = -1;
  ChildSpec child;
  std::string name() const;  // "worker 0", "coordinator"
};

struct ServiceSettings {
  RuntimePaths paths;
  std::string bin_dir;
  std::string devices;     // of all of them
  std::string jobs_since;  // empty: no matter when they were submitted
  AccessOptions access;
};

// Coordinator, swapper, host worker, and a worker for each device, in this order. `memory` must
// stay open until they have been started.
std::vector<Service> AllServices(const ServiceSettings& settings, const Memory& memory);

// NotFound names a program that is not there.
absl::Status CheckPrograms(const std::string& bin_dir);

// The logs of the run before become *.1.
void RotateLogs(const std::string& dir);

// Settings of every process that works on the segment, as environment variables.
std::vector<std::pair<std::string, std::string>> ProcessSettings(const std::string& runtime_dir,
                                                                 int segment_fd);

}  // namespace harmony::client
