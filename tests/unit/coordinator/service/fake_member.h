#pragma once

// Processes as the coordinator sees them, for tests: a link that notes what is sent, and children
// that do nothing.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "common/base/build_identity.h"
#include "common/rpc/attach_client.h"
#include "coordinator/service/processes/process_link.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::service {

class FakeLink : public ProcessLink {
 public:
  void Send(v1::ToProcess message) override { sent.push_back(message.message_case()); }
  void Close(absl::Status status) override { closed = status; }
  std::vector<int> sent;
  absl::Status closed;
};

// A process that does nothing, killed at the end.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Child() { KillAndReap(); }
  int pid() const { return pid_; }
  void KillAndReap() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Stop() { kill(pid_, SIGSTOP); }
  // It runs no more, though it is not reaped.
  bool Exited() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  // Waits for a death that somebody else brought about.
  void Reap() {
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

inline v1::Hello HelloOf(v1::Role role, int device, int pid) {
  v1::Hello hello;
  hello.set_role(role);
  hello.set_device(device);
  hello.set_pid(pid);
  hello.set_version(BuildIdentity());
  return hello;
}

}  // namespace harmony::service
