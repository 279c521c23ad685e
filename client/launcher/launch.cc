#include "client/launcher/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/launcher/supervisor.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/document/status_line.h"
#include "common/ipc/heartbeat.h"
#include "common/ipc/service_manager.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

constexpr int kLockTries = 40;
constexpr useconds_t kLockPauseMicros = 50'000;
constexpr char kRunningProgram[] = "/proc/self/exe";
constexpr int64_t kMostHangSeconds = 1'000'000;

// For who looks at a process with a debugger, and for tests.
absl::StatusOr<Nanos> HangLimit() {
  const char* const text = std::getenv(kHangSecondsVariable);
  if (text == nullptr) return HeartbeatWatch::kDefaultLimit;
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(text, &seconds) || seconds < 0 || seconds > kMostHangSeconds) {
    return absl::InvalidArgumentError(absl::StrCat(kHangSecondsVariable, ": '", text,
                                                   "' is not a number of seconds from 0 to ",
                                                   kMostHangSeconds));
  }
  return Seconds(seconds);
}

void Report(int fd, const absl::Status& status) {
  if (fd < 0) return;
  std::string line = document::EncodeStatus(status);
  ssize_t ignored = write(fd, line.data(), line.size());
  (void)ignored;
  close(fd);
}

// Two launchers may have runtime directories of their own, but one state directory: the second must
// not take the first one's logs away before it finds the database locked.
absl::StatusOr<ipc::UniqueFd> LockLogs(const RuntimePaths& paths) {
  ipc::UniqueFd folder(open(paths.logs().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", paths.logs()));
  // A file system without locks is let pass; one that was killed may still be ending.
  for (int i = 0; i < kLockTries; ++i) {
    if (flock(folder.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return folder;
    usleep(kLockPauseMicros);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("harmony is already running with the state directory ", paths.state_dir,
                   ": stop it with `harmony down`, or give another --state-dir"));
}

absl::Status Supervise(const LaunchOptions& options, bool& reported) {
  HARMONY_RETURN_IF_ERROR(CheckPrograms(options.bin_dir));
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.dir));
  HARMONY_ASSIGN_OR_RETURN(RuntimeLock lock, RuntimeLock::Acquire(options.paths));
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.logs()));
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd logs, LockLogs(options.paths));
  RemoveRuntimeFiles(options.paths);
  RotateLogs(options.paths.logs());
  HARMONY_ASSIGN_OR_RETURN(const Memory memory, MakeMemory(options.bin_dir, options.cluster));

  SupervisorOptions supervised;
  supervised.paths = options.paths;
  supervised.devices = options.cluster.devices;
  supervised.keep_up = !options.private_use;  // others may have jobs here
  supervised.services = AllServices(
      {options.paths, options.bin_dir, options.cluster.devices, options.jobs_since, options.access},
      memory);
  HARMONY_ASSIGN_OR_RETURN(
      ipc::HeartbeatTable heartbeats,
      ipc::HeartbeatTable::Create(static_cast<int>(supervised.services.size())));
  supervised.heartbeats = &heartbeats;
  HARMONY_ASSIGN_OR_RETURN(supervised.hang_limit, HangLimit());
  ipc::ServiceManager manager = ipc::ServiceManager::FromEnvironment();
  supervised.on_turn = [&manager](bool stopping) {
    manager.Alive(MonotonicClock().Now());
    if (stopping) manager.Stopping();
  };
  supervised.on_ready = [&options, &reported, &manager] {
    manager.Ready();
    Report(options.report_fd, absl::OkStatus());
    reported = true;
    spdlog::info("harmony is up on {}", options.paths.socket());
  };
  supervised.on_second_signal = options.on_second_signal;
  Supervisor supervisor(std::move(supervised));
  absl::Status status = supervisor.Run();
  if (options.remove_dir && supervisor.orphaned()) {
    std::error_code error;
    fs::remove_all(options.paths.dir, error);
  }
  return status;
}

}  // namespace

absl::Status LaunchAndSupervise(const LaunchOptions& options) {
  bool reported = false;
  absl::Status status = Supervise(options, reported);
  if (!reported) {
    Report(options.report_fd,
           status.ok() ? absl::CancelledError("stopped before it was ready") : status);
  }
  return status;
}

std::string OwnProgram() {
  std::error_code error;
  const fs::path named = fs::read_symlink(kRunningProgram, error);
  return !error && fs::exists(named, error) ? named.string() : kRunningProgram;
}

std::string OwnBinDir() {
  std::error_code error;
  return fs::read_symlink(kRunningProgram, error).parent_path();
}

}  // namespace harmony::client
