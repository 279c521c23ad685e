#pragma once

#include "client/commands/common.h"
#include "client/launcher/access_options.h"

namespace harmony::client {

struct UpOptions {
  ClusterOptions cluster;
  AccessOptions access = {};
  bool detach = false;
  // For our own use, when we start ourselves (supervisor_process.h).
  int report_fd = -1;
  bool private_use = false;
  bool remove_dir = false;
  std::string jobs_since = {};
};
int UpCommand(const GlobalOptions& global, const UpOptions& options);

}  // namespace harmony::client
