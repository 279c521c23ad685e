#pragma once

// The runtime directory of one set of processes: sockets, locks, list of processes. All of it is
// removed when the supervisor stops; what must survive (job database, logs) is in the state
// directory.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::client {

struct RuntimePaths {
  std::string dir;
  std::string state_dir;
  std::string socket_name = "coordinator.sock";

  std::string socket() const { return dir + "/" + socket_name; }
  std::string attach_socket() const;                              // for the processes themselves
  std::string socket_lock() const { return socket() + ".lock"; }  // the coordinator's own
  std::string lock() const { return dir + "/harmony.lock"; }      // the supervisor's
  // Where the owner of the memory listens, when processes are units of systemd.
  std::string memory_socket() const { return dir + "/memory.sock"; }
  std::string processes() const { return dir + "/processes.json"; }
  std::string logs() const { return state_dir + "/logs"; }
};

// Fills in what is empty. dir: the folder of $HARMONY_SOCKET, which names the socket too (also when
// that very dir was given), else $XDG_RUNTIME_DIR/harmony, else ~/.harmony. state_dir: `dir`/state
// when dir was given, else $XDG_STATE_HOME/harmony, else ~/.local/state/harmony. Both absolute.
// InvalidArgument when the socket's path would be longer than the kernel allows (107 bytes).
absl::StatusOr<RuntimePaths> ResolveRuntimePaths(const std::string& dir,
                                                 const std::string& state_dir);

// A new private directory for one `harmony run`, under $XDG_RUNTIME_DIR, $TMPDIR or /tmp. Also
// removes those of runs that died without a chance to clean up (nobody holds their lock).
absl::StatusOr<std::string> MakePrivateRuntimeDir();

// The folders of such runs, of this user, that nobody holds any more.
std::vector<std::string> DeadRuns();
void RemoveDeadRuns();

// Creates `dir` and its parents, mode 0700.
absl::Status MakeDirectories(const std::string& dir);

// Exclusive right to a runtime directory, held by the supervisor. A record lock of the kernel, so
// it ends with the process and names its holder: no stale pid file can mislead anyone.
class RuntimeLock {
 public:
  // FailedPrecondition names the process that holds it.
  static absl::StatusOr<RuntimeLock> Acquire(const RuntimePaths& paths);
  RuntimeLock(RuntimeLock&&) = default;
  RuntimeLock& operator=(RuntimeLock&&) = default;
  // Removes the lock file and lets go.
  ~RuntimeLock();

 private:
  RuntimeLock(std::string path, ipc::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  ipc::UniqueFd fd_;
};

// The process that holds the lock; 0 when none does. Not for the holder itself.
pid_t RuntimeLockHolder(const RuntimePaths& paths);

// Removes socket, process list and locks of a supervisor that is gone. FailedPrecondition when one
// is alive, or something answers on the socket all the same.
absl::Status RemoveStaleFiles(const RuntimePaths& paths);
// The same for the holder of the lock, after its children are gone; the lock file stays.
void RemoveRuntimeFiles(const RuntimePaths& paths);

// True when something accepts connections on the socket now.
bool SocketAccepts(const std::string& socket_path);

// One line of processes.json.
struct ProcessEntry {
  std::string role;  // "coordinator", "swapper", "host", "worker"
  int device = -1;   // workers only; left out of the file for others
  pid_t pid = 0;     // 0: not running now
  int64_t incarnation = 0;
  std::string log;
};
struct ProcessList {
  pid_t supervisor = 0;
  std::string socket;
  std::string devices;
  std::string state_dir;
  bool stopping = false;  // it was told to
  std::vector<ProcessEntry> processes;
  // The processes are units of systemd, and `supervisor` is who owns their memory.
  bool units = false;
};
// Replaces the file atomically.
absl::Status WriteProcessList(const RuntimePaths& paths, const ProcessList& list);
// NotFound when there is no such file.
absl::StatusOr<ProcessList> ReadProcessList(const RuntimePaths& paths);

// `paths` with the state directory of the processes that are up, or that were up last and left
// their list behind: they may have been given another one. Without a list, `paths` as they are.
RuntimePaths PathsInUse(RuntimePaths paths);

// The logs of the processes in `dir`, sorted; of `process` only, if it is not empty.
std::vector<std::string> LogFiles(const std::string& dir, const std::string& process);

// The last `lines` lines of a file from byte `from` on; empty when it cannot be read.
std::string TailOfFile(const std::string& path, int lines, int64_t from = 0);

}  // namespace harmony::client
