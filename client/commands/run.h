#pragma once

#include "client/commands/common.h"

namespace harmony::client {

struct RunOptions {
  JobOptions job;
  ClusterOptions cluster;
  std::string trace;  // file to write at the end; empty: none
};
// Starts all, trains, shows progress, stops all. A signal cancels with a checkpoint (exit code
// 128 + signal); a second one stops at once.
int RunCommand(const GlobalOptions& global, const RunOptions& options);

}  // namespace harmony::client
