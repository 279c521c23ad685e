#pragma once

#include "client/commands/common.h"

namespace harmony::client {

struct UpOptions {
  ClusterOptions cluster;
  bool detach = false;
  // For our own use, when we start ourselves (supervisor_process.h).
  int report_fd = -1;
  bool private_dir = false;
  std::string jobs_since = {};
};
int UpCommand(const GlobalOptions& global, const UpOptions& options);

}  // namespace harmony::client
