#pragma once

#include <string>

#include "client/commands/common.h"
#include "client/launcher/access_options.h"

namespace harmony::client {

// `harmony own-memory` and `harmony start-process`: what systemd runs for the units of
// deploy/systemd.

struct StartProcessOptions {
  std::string role;
  int device = -1;
  bool ended = false;    // it has, as $SERVICE_RESULT and the like tell
  AccessOptions access;  // of the coordinator
};

int OwnMemoryCommand(const GlobalOptions& global, const ClusterOptions& options);
// Returns only when the process cannot be started, with an exit code of its own, so that systemd
// can tell it from an end of the process: then another try changes nothing. Of one that has ended,
// tells the owner of the memory whether it died by itself.
int StartProcessCommand(const GlobalOptions& global, const StartProcessOptions& options);

}  // namespace harmony::client
