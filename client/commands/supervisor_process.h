#pragma once

// The supervisor as a child of this program: `harmony run` and `harmony up --detach` start one.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/launcher/access_options.h"
#include "client/launcher/child_process.h"
#include "client/launcher/cluster.h"
#include "client/launcher/runtime_dir.h"

namespace harmony::client {

struct SupervisorProcessOptions {
  RuntimePaths paths;
  std::string bin_dir;
  Cluster cluster;
  AccessOptions access = {};
  // Ends with us (SIGUSR1 from the kernel when we die: at once, for whoever killed us may start
  // again on the same output).
  bool bound_to_us = false;
  // ... and then removes the runtime directory, which was made for it (MakePrivateRuntimeDir).
  bool remove_dir = false;
  // With bound_to_us: jobs that were submitted before are left alone (RFC 3339, UTC).
  std::string jobs_since = {};
};

class SupervisorProcess {
 public:
  // Call from the main thread, before any other thread exists.
  static absl::StatusOr<SupervisorProcess> Start(const SupervisorProcessOptions& options);

  // Readable when the report about the start has come (or never will).
  int report_fd() const { return report_.get(); }
  // Call when report_fd() is readable: OK when the coordinator accepts connections.
  absl::Status TakeReport();
  // Readable when the process has exited.
  int pidfd() const { return child_.pidfd.get(); }
  void Signal(int signal);
  // Blocks until it has exited; its exit code, 1 when a signal ended it. Afterwards the same again.
  int Wait();

 private:
  Child child_;
  int exit_code_ = 0;
  ipc::UniqueFd report_;
};

}  // namespace harmony::client
