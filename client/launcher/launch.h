#pragma once

// `harmony up`: makes memory and directories, then supervises. Runs in the supervisor's process.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/launcher/access_options.h"
#include "client/launcher/cluster.h"
#include "client/launcher/runtime_dir.h"

namespace harmony::client {

// After how many seconds without a sign a process is taken to hang; 0: never.
inline constexpr char kHangSecondsVariable[] = "HARMONY_HANG_SECONDS";

struct LaunchOptions {
  RuntimePaths paths;
  std::string bin_dir;  // where the programs are
  Cluster cluster;
  AccessOptions access;
  // A descriptor to write one status line to, as soon as it is known whether the start
  // succeeded; -1: none.
  int report_fd = -1;
  // Nobody but who started us has jobs here, so that a process that keeps dying ends all.
  bool private_use = false;
  // The runtime directory was made for who started us, and is removed when that process dies. One
  // that a user named never is: it may hold anything.
  bool remove_dir = false;
  // Jobs that are in the database from before this time (RFC 3339, UTC) are left alone.
  std::string jobs_since;
  std::function<void()> on_second_signal;  // SupervisorOptions
};

// Returns when all has been stopped; see Supervisor::Run for the status. FailedPrecondition when
// another supervisor has the runtime directory.
absl::Status LaunchAndSupervise(const LaunchOptions& options);

// The running executable by its name, so that whoever lists processes can read it; where that is no
// longer there (another version was installed meanwhile), by what is running.
std::string OwnProgram();
// Its folder.
std::string OwnBinDir();

}  // namespace harmony::client
