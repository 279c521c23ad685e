#include "common/ipc/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace harmony::ipc {
namespace {

// One that is late, for the process is busy, is not the end of it.
constexpr int64_t kSignsPerLimit = 3;
constexpr char kAnotherMinute[] = "\nEXTEND_TIMEOUT_USEC=60000000";

std::string ReadVariable(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

std::string Take(const char* variable) {
  std::string value = ReadVariable(variable);
  unsetenv(variable);
  return value;
}

bool IsOurs(const std::string& whose) {
  int64_t pid = 0;
  return absl::SimpleAtoi(whose, &pid) && pid == getpid();
}

// The path that a socket listens on; empty when it does not listen, or not on a path.
std::string ListeningPath(int fd) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) return "";
  sockaddr_un address = {};
  size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (address.sun_family != AF_UNIX) return "";
  return std::string(address.sun_path, strnlen(address.sun_path, sizeof(address.sun_path)));
}

absl::Status SendDatagram(const std::string& path, const std::string& text, int fd, bool wait) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("NOTIFY_SOCKET: ", path, " is too long"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const UniqueFd socket(
      ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0));
  if (!socket.valid() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("reaching ", path));
  }
  return SendAnswer(socket.get(), text, fd);
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.socket_ = Take("NOTIFY_SOCKET");
  int64_t micros = 0;
  const std::string limit = Take("WATCHDOG_USEC"), whose = Take("WATCHDOG_PID");
  const bool ours = whose.empty() || IsOurs(whose);
  if (ours && absl::SimpleAtoi(limit, &micros) && micros > 0) {
    manager.interval_ = Nanos(micros * 1000 / kSignsPerLimit);
  }
  return manager;
}

void ServiceManager::Stopping() {
  if (stopping_) return;
  stopping_ = true;
  last_sign_.reset();
  Send("STOPPING=1");
}

void ServiceManager::Alive(Nanos now) {
  if (interval_ == Nanos(0) || (last_sign_ && now - *last_sign_ < interval_)) return;
  last_sign_ = now;
  Send(absl::StrCat("WATCHDOG=1", stopping_ ? kAnotherMinute : ""));
}

absl::Status ServiceManager::Keep(absl::string_view name, int fd) const {
  // A region of a GPU is no file of the kernel's own: nobody knows what it answers to a poll.
  return SendAndWait(absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", name), fd);
}

absl::Status ServiceManager::Forget(absl::string_view name) const {
  return SendAndWait(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name), -1);
}

void ServiceManager::Send(const std::string& text) const {
  if (!socket_.empty()) (void)SendDatagram(socket_, text, -1, /*wait=*/false);
}

absl::Status ServiceManager::SendAndWait(const std::string& text, int fd) const {
  if (socket_.empty()) return absl::OkStatus();
  return WithContext(SendDatagram(socket_, text, fd, /*wait=*/true), "telling the service manager");
}

int HandedFdCount() {
  int count = 0;
  const bool given = absl::SimpleAtoi(ReadVariable("LISTEN_FDS"), &count) && count > 0;
  return given && IsOurs(ReadVariable("LISTEN_PID")) ? count : 0;
}

absl::StatusOr<std::vector<NamedFd>> TakeHandedFds() {
  const int count = HandedFdCount();
  const std::vector<std::string> names = absl::StrSplit(Take("LISTEN_FDNAMES"), ':');
  for (const char* variable : {"LISTEN_FDS", "LISTEN_PID"}) unsetenv(variable);
  std::vector<NamedFd> handed;
  for (int i = 0; i < count; ++i) {
    const int fd = kFirstHandedFd + i;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("LISTEN_FDS: descriptor ", fd, " is not open"));
    }
    const auto at = static_cast<size_t>(i);
    handed.push_back({at < names.size() ? names[at] : "", UniqueFd(fd)});
  }
  return handed;
}

absl::StatusOr<UniqueFd> TakeHandedSocket(const std::string& path) {
  HARMONY_ASSIGN_OR_RETURN(std::vector<NamedFd> handed, TakeHandedFds());
  if (handed.empty()) return UniqueFd();
  const std::string listening = ListeningPath(handed.front().fd.get());
  if (handed.size() == 1 && listening == path) return std::move(handed.front().fd);
  return absl::FailedPreconditionError(
      absl::StrCat("LISTEN_FDS: one socket that listens on ", path, " is expected, there are ",
                   handed.size(), " descriptors, the first ",
                   listening.empty() ? "no such socket" : absl::StrCat("on ", listening)));
}

}  // namespace harmony::ipc
