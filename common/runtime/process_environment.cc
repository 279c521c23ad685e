#include "common/runtime/process_environment.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "absl/strings/numbers.h"
#include "common/base/status.h"

namespace harmony::runtime {
namespace {

absl::StatusOr<int> ReadNumber(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  if (text != nullptr && (!absl::SimpleAtoi(text, &number) || number < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", variable, ": '", text, "' is not a number"));
  }
  return number;
}

}  // namespace

absl::StatusOr<ProcessEnvironment> ReadProcessEnvironment() {
  ProcessEnvironment environment;
  HARMONY_ASSIGN_OR_RETURN(const int incarnation, ReadNumber("HARMONY_INCARNATION"));
  environment.incarnation = static_cast<uint32_t>(incarnation);
  HARMONY_ASSIGN_OR_RETURN(const int own_deaths, ReadNumber("HARMONY_OWN_DEATHS"));
  environment.own_deaths = static_cast<uint32_t>(own_deaths);
  HARMONY_ASSIGN_OR_RETURN(environment.parent_pid, ReadNumber("HARMONY_PARENT_PID"));
  return environment;
}

absl::Status DieWithParent(int parent_pid) {
  if (parent_pid == 0) return absl::OkStatus();
  if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) {
    return absl::InternalError(
        absl::StrCat("PR_SET_PDEATHSIG: ", std::generic_category().message(errno)));
  }
  // It may have died before the line above took effect.
  if (getppid() != parent_pid) {
    return absl::FailedPreconditionError(
        absl::StrCat("the supervisor, process ", parent_pid, ", is gone"));
  }
  return absl::OkStatus();
}

TerminationSignals::TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A limit on the size of files is met as a full disk is, by the write that fails.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

TerminationSignals::~TerminationSignals() {
  close(signal_fd_);
  close(stop_fd_);
}

int TerminationSignals::Wait() {
  while (true) {
    pollfd events[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(events, 2, -1) < 0) continue;  // EINTR
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
    if (events[1].revents != 0) return 0;
  }
}

void TerminationSignals::RequestStop() {
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
}

}  // namespace harmony::runtime
