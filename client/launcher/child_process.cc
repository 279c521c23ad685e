#include "client/launcher/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "client/launcher/pidfd.h"
#include "common/base/status.h"
#include "common/ipc/service_manager.h"

extern char** environ;

namespace harmony::client {
namespace {

std::vector<std::string> MergedEnvironment(const ChildSpec& spec) {
  std::set<std::string> replaced;
  std::vector<std::string> result;
  for (const auto& [name, value] : spec.environment) {
    replaced.insert(name);
    result.push_back(absl::StrCat(name, "=", value));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    if (!replaced.contains(text.substr(0, text.find('=')))) result.push_back(std::move(text));
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// From a process of ours to the program: async-signal-safe calls only. Returns on failure, with
// errno set.
void PrepareAndExec(const ChildSpec& spec, int log_fd, char* const* arguments,
                    char* const* environment) {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, 0) < 0) return;
  if (null_fd != 0) close(null_fd);
  if (log_fd >= 0 && (dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)) return;
  // Whatever our own parent left open is not for the child.
  if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) != 0) return;
  for (int fd : spec.inherited_fds) {
    if (fcntl(fd, F_SETFD, 0) != 0) return;
  }
  execve(spec.program.c_str(), arguments, environment);
}

// What the child does between fork and exec, likewise.
void BeChildAndExec(const ChildSpec& spec, pid_t parent, int log_fd, char* const* arguments,
                    char* const* environment) {
  if (prctl(PR_SET_PDEATHSIG, spec.death_signal) != 0) return;
  if (getppid() != parent) _exit(1);  // it died before the signal was set
  setsid();
  PrepareAndExec(spec, log_fd, arguments, environment);
}

std::vector<std::string> CommandLine(const ChildSpec& spec) {
  std::vector<std::string> words = {spec.program};
  words.insert(words.end(), spec.arguments.begin(), spec.arguments.end());
  return words;
}

// None where there is to be none.
absl::StatusOr<ipc::UniqueFd> OpenLog(const ChildSpec& spec) {
  if (spec.log_path.empty()) return ipc::UniqueFd();
  ipc::UniqueFd log(open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", spec.log_path));
  return log;
}

}  // namespace

absl::StatusOr<Child> Spawn(const ChildSpec& spec) {
  std::vector<std::string> arguments = CommandLine(spec);
  std::vector<std::string> environment = MergedEnvironment(spec);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> environment_pointers = Pointers(environment);
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd log, OpenLog(spec));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "making a pipe");
  ipc::UniqueFd failed_read(ends[0]), failed_write(ends[1]);

  pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid < 0) return absl::ErrnoToStatus(errno, "forking");
  if (child.pid == 0) {
    BeChildAndExec(spec, parent, log.get(), argument_pointers.data(), environment_pointers.data());
    int error = errno;
    ssize_t ignored = write(failed_write.get(), &error, sizeof(error));
    (void)ignored;
    _exit(127);
  }
  failed_write.Reset();
  int error = 0;
  ssize_t got;
  while ((got = read(failed_read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (got == sizeof(error)) {
    waitpid(child.pid, nullptr, 0);
    return absl::ErrnoToStatus(error, absl::StrCat("starting ", spec.program));
  }
  // The child is not reaped yet, so the number cannot have been given to another process.
  child.pidfd = ipc::UniqueFd(pidfd_open(child.pid, 0));
  if (!child.pidfd.valid()) {
    const absl::Status status = absl::ErrnoToStatus(errno, "opening a pidfd");
    kill(child.pid, SIGKILL);  // or it would run beside the one that is started next
    waitpid(child.pid, nullptr, 0);
    return status;
  }
  return child;
}

absl::Status Become(const ChildSpec& spec) {
  ChildSpec with_handed = spec;
  for (int i = 0; i < ipc::HandedFdCount(); ++i) {
    with_handed.inherited_fds.push_back(ipc::kFirstHandedFd + i);
  }
  std::vector<std::string> arguments = CommandLine(spec);
  std::vector<std::string> environment = MergedEnvironment(spec);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> environment_pointers = Pointers(environment);
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd log, OpenLog(spec));
  PrepareAndExec(with_handed, log.get(), argument_pointers.data(), environment_pointers.data());
  return absl::ErrnoToStatus(errno, absl::StrCat("starting ", spec.program));
}

std::string DescribeExit(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
  int signal = WTERMSIG(wait_status);
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

}  // namespace harmony::client
