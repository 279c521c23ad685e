#include "client/launcher/runtime_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/io/file.h"
#include "common/rpc/address.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

constexpr char kPrivatePrefix[] = "harmony-run.";
// What says that such a folder was made by a run, and goes with it.
constexpr char kPrivateMark[] = "/.made-by-harmony";
// A folder without a lock is that of a run which is about to start, or was killed before it did.
constexpr time_t kStartSeconds = 600;

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status Errno(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

struct flock WholeFile(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// True when `fd` is (still) the file at `path`: the holder before us may have removed it.
bool SameFile(int fd, const std::string& path) {
  struct stat a, b;
  return fstat(fd, &a) == 0 && stat(path.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (!error) return absolute.lexically_normal().string();
  return io::ErrnoStatus(error.value(), "the current folder is gone; give a whole path", path);
}

std::string ParentOfPrivateDirs() {
  std::string parent = Environment("XDG_RUNTIME_DIR");
  if (parent.empty() || access(parent.c_str(), W_OK | X_OK) != 0) parent = Environment("TMPDIR");
  // A path too long for a socket would only fail later.
  return parent.empty() || parent.size() > 70 ? "/tmp" : parent;
}

}  // namespace

std::string RuntimePaths::attach_socket() const { return rpc::AttachSocketOf(socket()); }

std::vector<std::string> DeadRuns() {
  std::vector<std::string> dead;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(ParentOfPrivateDirs(), error)) {
    if (!absl::StartsWith(entry.path().filename().string(), kPrivatePrefix)) continue;
    const RuntimePaths paths{entry.path().string(), ""};
    struct stat info, mark, lock;
    if (lstat(paths.dir.c_str(), &info) != 0 || info.st_uid != geteuid()) continue;
    // A user may have a folder of such a name.
    if (!S_ISDIR(info.st_mode) || lstat((paths.dir + kPrivateMark).c_str(), &mark) != 0) continue;
    if (stat(paths.lock().c_str(), &lock) != 0 && time(nullptr) - info.st_mtime < kStartSeconds) {
      continue;
    }
    if (RuntimeLockHolder(paths) == 0) dead.push_back(paths.dir);
  }
  return dead;
}

void RemoveDeadRuns() {
  std::error_code error;
  for (const std::string& dir : DeadRuns()) {
    // Whoever gets the lock owns the folder.
    const absl::StatusOr<RuntimeLock> lock = RuntimeLock::Acquire({dir, ""});
    if (lock.ok()) fs::remove_all(dir, error);
  }
}

absl::StatusOr<RuntimePaths> ResolveRuntimePaths(const std::string& dir,
                                                 const std::string& state_dir) {
  RuntimePaths paths;
  std::string home = Environment("HOME");
  fs::path socket;
  if (!Environment("HARMONY_SOCKET").empty()) {
    HARMONY_ASSIGN_OR_RETURN(socket, rpc::ResolveSocketPath(""));
    socket = socket.lexically_normal();
  }
  if (!dir.empty()) {
    HARMONY_ASSIGN_OR_RETURN(paths.dir, AbsolutePath(dir));
  } else if (!socket.empty()) {
    paths.dir = socket.parent_path();
  } else if (std::string runtime = Environment("XDG_RUNTIME_DIR"); !runtime.empty()) {
    paths.dir = runtime + "/harmony";
  } else if (!home.empty()) {
    paths.dir = home + "/.harmony";
  } else {
    return absl::InvalidArgumentError(
        "neither XDG_RUNTIME_DIR nor HOME is set: give --runtime-dir");
  }
  if (paths.dir.size() > 1 && paths.dir.back() == '/') paths.dir.pop_back();
  if (paths.dir == socket.parent_path()) paths.socket_name = socket.filename();
  if (!state_dir.empty()) {
    HARMONY_ASSIGN_OR_RETURN(paths.state_dir, AbsolutePath(state_dir));
  } else if (!dir.empty() || home.empty()) {
    paths.state_dir = paths.dir + "/state";
  } else if (std::string state = Environment("XDG_STATE_HOME"); !state.empty()) {
    paths.state_dir = state + "/harmony";
  } else {
    paths.state_dir = home + "/.local/state/harmony";
  }
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (paths.socket().size() > kLongest) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path of the socket, ", paths.socket(), ", has ", paths.socket().size(),
                     " bytes; the kernel allows ", kLongest, ": give a shorter --runtime-dir"));
  }
  return paths;
}

absl::StatusOr<std::string> MakePrivateRuntimeDir() {
  RemoveDeadRuns();
  const std::string parent = ParentOfPrivateDirs();
  std::string dir = absl::StrCat(parent, "/", kPrivatePrefix, "XXXXXX");
  if (mkdtemp(dir.data()) == nullptr) return Errno(absl::StrCat("making a directory in ", parent));
  const ipc::UniqueFd mark(
      open((dir + kPrivateMark).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!mark.valid()) {
    const absl::Status failed = Errno(absl::StrCat("making ", dir, kPrivateMark));
    rmdir(dir.c_str());
    return failed;
  }
  return dir;
}

absl::Status MakeDirectories(const std::string& dir) {
  for (size_t slash = dir.find('/', 1);; slash = dir.find('/', slash + 1)) {
    std::string part = dir.substr(0, slash);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return Errno(absl::StrCat("making directory ", part));
    }
    if (slash == std::string::npos) break;
  }
  struct stat info;
  if (stat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(dir, " is not a directory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RuntimeLock> RuntimeLock::Acquire(const RuntimePaths& paths) {
  std::string path = paths.lock();
  while (true) {
    ipc::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd.valid()) return Errno(absl::StrCat("opening ", path));
    struct flock lock = WholeFile(F_WRLCK);
    if (fcntl(fd.get(), F_SETLK, &lock) == 0) {
      if (SameFile(fd.get(), path)) return RuntimeLock(path, std::move(fd));
      continue;
    }
    if (errno != EAGAIN && errno != EACCES) return Errno(absl::StrCat("locking ", path));
    lock = WholeFile(F_WRLCK);
    if (fcntl(fd.get(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("harmony is already running on ", paths.socket(), " (process ", lock.l_pid,
                     "): stop it with `harmony down`, or give another --runtime-dir"));
  }
}

RuntimeLock::~RuntimeLock() {
  if (fd_.valid()) unlink(path_.c_str());
}

pid_t RuntimeLockHolder(const RuntimePaths& paths) {
  ipc::UniqueFd fd(open(paths.lock().c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return 0;
  struct flock lock = WholeFile(F_WRLCK);
  if (fcntl(fd.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_pid;
}

absl::Status RemoveStaleFiles(const RuntimePaths& paths) {
  struct stat info;
  if (stat(paths.dir.c_str(), &info) != 0) return absl::OkStatus();
  HARMONY_ASSIGN_OR_RETURN(RuntimeLock lock, RuntimeLock::Acquire(paths));
  if (SocketAccepts(paths.socket())) {
    return absl::FailedPreconditionError(
        absl::StrCat("a coordinator without a launcher answers on ", paths.socket(),
                     ": end it first (a unit of systemd: `systemctl stop harmony.target`; else the "
                     "process that holds ",
                     paths.socket_lock(), ")"));
  }
  RemoveRuntimeFiles(paths);
  return absl::OkStatus();
}

void RemoveRuntimeFiles(const RuntimePaths& paths) {
  for (const std::string& path :
       {paths.socket(), paths.attach_socket(), paths.socket_lock(), paths.processes()}) {
    struct stat info;
    const bool names_socket = path == paths.socket() || path == paths.attach_socket();
    // $HARMONY_SOCKET may name anything.
    if (names_socket && lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) continue;
    unlink(path.c_str());
  }
}

bool SocketAccepts(const std::string& socket_path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, socket_path.data(), socket_path.size());
  ipc::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return false;
  // Of a socket with many who wait, too: who listens does so whether it has room for one more.
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN;
}

absl::Status WriteProcessList(const RuntimePaths& paths, const ProcessList& list) {
  nlohmann::ordered_json json;
  json["supervisor"] = list.supervisor;
  json["socket"] = list.socket;
  json["devices"] = list.devices;
  json["state_dir"] = list.state_dir;
  json["stopping"] = list.stopping;
  json["units"] = list.units;
  json["processes"] = nlohmann::ordered_json::array();
  for (const ProcessEntry& entry : list.processes) {
    nlohmann::ordered_json one;
    one["role"] = entry.role;
    if (entry.device >= 0) one["device"] = entry.device;
    one["pid"] = entry.pid;
    one["incarnation"] = entry.incarnation;
    one["log"] = entry.log;
    json["processes"].push_back(std::move(one));
  }
  std::string next = paths.processes() + ".next";
  {
    std::ofstream file(next, std::ios::trunc);
    file << json.dump(1) << "\n";
    if (!file.flush()) return absl::InternalError(absl::StrCat("cannot write ", next));
  }
  if (rename(next.c_str(), paths.processes().c_str()) != 0) {
    return Errno(absl::StrCat("renaming ", next));
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessList> ReadProcessList(const RuntimePaths& paths) {
  const absl::StatusOr<std::string> text =
      io::ReadWholeFile(paths.processes(), limits::kMostFileBytes);
  if (!text.ok()) return absl::NotFoundError(absl::StrCat("harmony is not up on ", paths.dir));
  ProcessList list;
  const absl::Status read =
      document::ReadJson(*text, paths.processes(), [&](const document::JsonField& root) {
        root.Only(
            {"supervisor", "socket", "devices", "state_dir", "stopping", "units", "processes"});
        list.supervisor = root.Get("supervisor").Int(0);
        list.socket = root.Get("socket").Text();
        list.devices = root.Get("devices").Text();
        list.state_dir = root.Get("state_dir").Text();
        list.stopping = root.Get("stopping").Flag();
        list.units = root.Get("units").Flag();
        for (const document::JsonField& item : root.Get("processes").Items()) {
          item.Only({"role", "device", "pid", "incarnation", "log"});
          ProcessEntry& entry = list.processes.emplace_back();
          entry.role = item.Get("role").Text();
          if (item.Has("device")) entry.device = item.Get("device").Int(0);
          entry.pid = item.Get("pid").Int(0);
          entry.incarnation = item.Get("incarnation").Integer(0);
          entry.log = item.Get("log").Text();
        }
      });
  if (!read.ok()) return absl::DataLossError(read.message());
  return list;
}

RuntimePaths PathsInUse(RuntimePaths paths) {
  absl::StatusOr<ProcessList> list = ReadProcessList(paths);
  if (list.ok()) paths.state_dir = std::move(list->state_dir);
  return paths;
}

std::vector<std::string> LogFiles(const std::string& dir, const std::string& process) {
  std::vector<std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    const fs::path& path = entry.path();
    const bool wanted = process.empty() || path.stem() == process;
    if (path.extension() == ".log" && wanted) files.push_back(path.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string TailOfFile(const std::string& path, int lines, int64_t from) {
  std::ifstream file(path);
  std::error_code error;
  if (from > 0 && from <= static_cast<int64_t>(fs::file_size(path, error))) file.seekg(from);
  std::deque<std::string> tail;
  for (std::string line; std::getline(file, line);) {
    tail.push_back(std::move(line));
    if (static_cast<int>(tail.size()) > lines) tail.pop_front();
  }
  return absl::StrJoin(tail, "\n");
}

}  // namespace harmony::client
