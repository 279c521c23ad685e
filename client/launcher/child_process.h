#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::client {

struct ChildSpec {
  std::string program;  // path of the executable
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;  // added to our own, or replacing
  std::vector<int> inherited_fds;  // keep their numbers; every other descriptor of ours is CLOEXEC
  std::string log_path;            // stdout and stderr are appended there; empty: ours
  // Sent by the kernel to the child when the *thread* that spawned it exits.
  int death_signal = 9;
};

struct Child {
  pid_t pid = 0;
  ipc::UniqueFd pidfd;
};

// Starts a child in a session of its own (a Ctrl-C on the terminal reaches the launcher only),
// stdin from /dev/null, default signal dispositions, nothing blocked. Call from the main thread. An
// exec that fails is reported here, by name, not as a death of the child.
absl::StatusOr<Child> Spawn(const ChildSpec& spec);

// Makes this process that program: as Spawn, but for session and death signal, which stay as they
// are; sockets that a service manager has handed to us are handed on. Returns only when that fails.
absl::Status Become(const ChildSpec& spec);

// "exit code 3", "signal 9 (Killed)".
std::string DescribeExit(int wait_status);

}  // namespace harmony::client
