#include "client/commands/supervisor_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/launcher/launch.h"
#include "client/launcher/pidfd.h"
#include "common/base/status.h"
#include "common/document/status_line.h"

namespace harmony::client {

absl::StatusOr<SupervisorProcess> SupervisorProcess::Start(
    const SupervisorProcessOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "making a pipe");
  SupervisorProcess process;
  process.report_ = ipc::UniqueFd(ends[0]);
  ipc::UniqueFd write_end(ends[1]);
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.logs()));

  ChildSpec spec;
  spec.program = OwnProgram();
  spec.arguments = {"up",
                    "--runtime-dir",
                    options.paths.dir,
                    "--state-dir",
                    options.paths.state_dir,
                    "--bin-dir",
                    options.bin_dir,
                    "--devices",
                    options.cluster.devices,
                    "--host-memory",
                    absl::StrCat(options.cluster.host_memory.count()),
                    "--report-fd",
                    absl::StrCat(write_end.get())};
  const std::vector<std::string> access = options.access.ToArguments();
  spec.arguments.insert(spec.arguments.end(), access.begin(), access.end());
  if (options.bound_to_us) {
    spec.arguments.insert(spec.arguments.end(), {"--private", "--jobs-since", options.jobs_since});
  }
  if (options.remove_dir) spec.arguments.push_back("--remove-dir");
  spec.inherited_fds = {write_end.get()};
  spec.log_path = options.paths.logs() + "/supervisor.log";
  spec.death_signal = options.bound_to_us ? SIGUSR1 : 0;
  HARMONY_ASSIGN_OR_RETURN(process.child_, Spawn(spec));
  return process;
}

absl::Status SupervisorProcess::TakeReport() {
  std::string line;
  char buffer[4096];
  ssize_t got;
  while ((got = read(report_.get(), buffer, sizeof(buffer))) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) line.append(buffer, got);
  }
  report_.Reset();
  return document::DecodeStatus(line, "the launcher");
}

void SupervisorProcess::Signal(int signal) {
  if (child_.pidfd.valid()) pidfd_send_signal(child_.pidfd.get(), signal, nullptr, 0);
}

int SupervisorProcess::Wait() {
  if (child_.pid == 0) return exit_code_;
  int status = 0;
  while (waitpid(child_.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = Child();
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return exit_code_;
}

}  // namespace harmony::client
