#include "coordinator/service/access/listeners.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::service {
namespace {

constexpr int kBacklog = 128;

absl::Status Errno(const std::string& what) {
  return absl::FailedPreconditionError(absl::ErrnoToStatus(errno, what).message());
}

// So that a group may come to the socket; others' folders are as their owner wants them.
absl::Status LetThrough(const std::string& folder, gid_t group) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) return Errno(absl::StrCat("looking at ", folder));
  if (info.st_uid != geteuid() || (info.st_mode & S_IXOTH) != 0) return absl::OkStatus();
  if (info.st_gid == group && (info.st_mode & S_IXGRP) != 0) return absl::OkStatus();
  if (chown(folder.c_str(), static_cast<uid_t>(-1), group) != 0 ||
      chmod(folder.c_str(), (info.st_mode & 07700) | S_IXGRP) != 0) {
    return Errno(absl::StrCat("letting group ", group, " through ", folder));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OpenToGroup(const std::string& socket_path, gid_t group) {
  if (chown(socket_path.c_str(), static_cast<uid_t>(-1), group) != 0) {
    return Errno(absl::StrCat("giving ", socket_path, " to group ", group,
                              " (--socket-group), which whoever runs the coordinator has to be a "
                              "member of"));
  }
  if (chmod(socket_path.c_str(), 0660) != 0) return Errno(absl::StrCat("chmod ", socket_path));
  return LetThrough(std::filesystem::path(socket_path).parent_path().string(), group);
}

absl::StatusOr<ipc::UniqueFd> ListenLocally(const std::string& socket_path,
                                            std::optional<gid_t> group) {
  ipc::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(socket_path, ": too long for a socket"));
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  // The file takes the mode of the unbound socket.
  if (!fd.valid() || fchmod(fd.get(), 0600) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Errno(absl::StrCat("cannot listen on ", socket_path));
  }
  if (group) HARMONY_RETURN_IF_ERROR(OpenToGroup(socket_path, *group));
  if (listen(fd.get(), kBacklog) != 0) return Errno(absl::StrCat("cannot listen on ", socket_path));
  return fd;
}

absl::StatusOr<TcpListener> ListenOnTcp(const rpc::HostPort& address) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrCat("--listen ", address.ToString(), ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  TcpListener listener;
  listener.fd =
      ipc::UniqueFd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (!listener.fd.valid() ||
      setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(listener.fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener.fd.get(), kBacklog) != 0) {
    return Errno(absl::StrCat("--listen ", address.ToString()));
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  // IPv4 and IPv6 have the port in the same place.
  listener.port = ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return listener;
}

}  // namespace harmony::service
