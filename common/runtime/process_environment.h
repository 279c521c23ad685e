#pragma once

// What a spawned process gets from its supervisor beside its flags, and how it ends.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace harmony::runtime {

struct ProcessEnvironment {
  uint32_t incarnation = 0;  // HARMONY_INCARNATION: how often this process was started before
  // HARMONY_OWN_DEATHS: how often of these it then died by itself or hung, and was not killed.
  uint32_t own_deaths = 0;
  int parent_pid = 0;  // HARMONY_PARENT_PID; 0: not given
};

// Descriptors are read by InheritedSegmentFd and InheritedDeviceFds (common/ipc/fd_passing.h).
// InvalidArgument names a variable that is no number.
absl::StatusOr<ProcessEnvironment> ReadProcessEnvironment();

// Asks the kernel for SIGTERM when the parent dies and checks that it has not died before.
// FailedPrecondition when it has. Does nothing for parent_pid 0.
absl::Status DieWithParent(int parent_pid);

// SIGTERM and SIGINT as events of the main thread. Construct it before any other thread exists:
// they inherit the blocked mask.
class TerminationSignals {
 public:
  TerminationSignals();
  ~TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;

  // Blocks until a signal came or RequestStop was called; the signal's number, 0 for the latter.
  int Wait();
  // From any thread.
  void RequestStop();

 private:
  int signal_fd_ = -1;
  int stop_fd_ = -1;
};

}  // namespace harmony::runtime
