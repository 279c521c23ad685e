#include "client/launcher/handover.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/document/status_line.h"

namespace harmony::client {
namespace {

using nlohmann::ordered_json;

constexpr int kBacklog = 128;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the path of the socket, ", path,
                                                   ", is too long: give a shorter --runtime-dir"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

ipc::UniqueFd PacketSocket() {
  return ipc::UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

// Of what a peer sent: it ended, or was ended, before it was done.
absl::StatusOr<ipc::Answer> Receive(int connection) {
  absl::StatusOr<ipc::Answer> answer = ipc::ReceiveAnswer(connection);
  if (answer.ok()) return answer;
  return absl::UnavailableError(answer.status().message());
}

// The connection to the owner, who has been sent the request.
absl::StatusOr<ipc::UniqueFd> Request(const std::string& socket_path, const StartRequest& request) {
  HARMONY_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(socket_path));
  ipc::UniqueFd fd = PacketSocket();
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat("nobody who owns the memory listens on ",
                                               socket_path, ": ", std::strerror(errno)));
  }
  ordered_json json = {{"version", BuildIdentity()}, {"role", request.role}};
  if (request.device >= 0) json["device"] = request.device;
  if (request.died_by_itself) json["died_by_itself"] = true;
  if (!ipc::SendAnswer(fd.get(), json.dump()).ok()) {
    return absl::UnavailableError(
        absl::StrCat("who owns the memory on ", socket_path, " has gone"));
  }
  return fd;
}

}  // namespace

absl::StatusOr<ipc::UniqueFd> ListenForStarts(const std::string& socket_path) {
  HARMONY_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(socket_path));
  ipc::UniqueFd fd = PacketSocket();
  unlink(socket_path.c_str());  // of a predecessor that died; the lock is ours
  const mode_t mask = umask(0177);
  const bool bound = fd.valid() && bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                                        sizeof(address)) == 0;
  const int error = errno;
  umask(mask);
  if (!bound || listen(fd.get(), kBacklog) != 0) {
    return absl::ErrnoToStatus(bound ? errno : error, absl::StrCat("listening on ", socket_path));
  }
  return fd;
}

absl::StatusOr<StartRequest> ReceiveStartRequest(int connection) {
  HARMONY_ASSIGN_OR_RETURN(const ipc::Answer packet, Receive(connection));
  StartRequest request;
  std::string version;
  HARMONY_RETURN_IF_ERROR(
      document::ReadJson(packet.text, "request to start", [&](const document::JsonField& root) {
        root.Only({"version", "role", "device", "died_by_itself"});
        version = root.Get("version").Text();
        request.role = root.Get("role").Text();
        if (root.Has("device")) request.device = root.Get("device").Int(0);
        if (root.Has("died_by_itself")) request.died_by_itself = root.Get("died_by_itself").Flag();
      }));
  if (version == BuildIdentity()) return request;
  return absl::FailedPreconditionError(absl::StrCat(
      "the memory was made by a harmony built as ", BuildIdentity(), ", this one was built as '",
      version, "': stop all (systemctl stop harmony.target), and start it again"));
}

absl::Status SendStartAnswer(int connection, const StartAnswer& answer, const Memory& memory) {
  const ordered_json json = {{"devices", answer.devices},
                             {"incarnation", answer.incarnation},
                             {"own_deaths", answer.own_deaths},
                             {"regions", memory.devices.size()}};
  HARMONY_RETURN_IF_ERROR(ipc::SendAnswer(
      connection, absl::StrCat(document::EncodeStatus(absl::OkStatus()), json.dump())));
  return ForEachDescriptor(memory, [&](const std::string& name, int fd) {
    return ipc::SendAnswer(connection, name, fd);
  });
}

absl::Status SendStatus(int connection, const absl::Status& status) {
  return ipc::SendAnswer(connection, document::EncodeStatus(status));
}

absl::Status ReportOwnDeath(const std::string& socket_path, StartRequest process) {
  process.died_by_itself = true;
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd fd, Request(socket_path, process));
  HARMONY_ASSIGN_OR_RETURN(const ipc::Answer answer, Receive(fd.get()));
  return document::DecodeStatus(answer.text, socket_path);
}

absl::StatusOr<StartAnswer> AskToStart(const std::string& socket_path,
                                       const StartRequest& request) {
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd fd, Request(socket_path, request));
  HARMONY_ASSIGN_OR_RETURN(const ipc::Answer first, Receive(fd.get()));
  const size_t end = first.text.find('\n');
  HARMONY_RETURN_IF_ERROR(document::DecodeStatus(first.text.substr(0, end), socket_path));
  StartAnswer answer;
  size_t regions = 0;
  HARMONY_RETURN_IF_ERROR(
      document::ReadJson(end == std::string::npos ? "" : first.text.substr(end + 1), socket_path,
                         [&](const document::JsonField& root) {
                           root.Only({"devices", "incarnation", "own_deaths", "regions"});
                           answer.devices = root.Get("devices").Text();
                           answer.incarnation = root.Get("incarnation").Integer(0);
                           answer.own_deaths = root.Get("own_deaths").Integer(0);
                           regions = static_cast<size_t>(root.Get("regions").Integer(1));
                         }));
  std::vector<ipc::NamedFd> descriptors;
  for (absl::StatusOr<ipc::Answer> next; (next = ipc::ReceiveAnswer(fd.get())).ok();) {
    descriptors.push_back({next->text, std::move(next->fd)});
  }
  absl::StatusOr<Memory> memory = MemoryOf(descriptors);
  if (!memory.ok() || memory->devices.size() != regions) {
    return absl::UnavailableError(
        absl::StrCat("who owns the memory on ", socket_path, " ended before it had sent all"));
  }
  answer.memory = *std::move(memory);
  return answer;
}

}  // namespace harmony::client
