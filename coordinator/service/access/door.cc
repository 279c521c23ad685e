#include "coordinator/service/access/door.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/address.h"

namespace harmony::service {
namespace {

// Of each socket, from all peers together. Taking a connection in and closing it costs some 50 us
// of a core, a handshake some 2 ms.
constexpr double kLocalPerSecond = 150, kLocalBurst = 600;
constexpr double kRemotePerSecond = 20, kRemoteBurst = 80;
// Of a kind. Each has a server with a thread or two. One that has no connection makes room.
constexpr size_t kMostPeers = 64;
// Of the peers of a kind; the owner and root have as many as any peer may. Far below the usual
// limit of descriptors, of which jobs need some, too.
constexpr size_t kMostOfUsers = 128, kMostRemote = 64;
// Which connections there still are takes a call of the system for each.
constexpr Nanos kBetweenLooks = Millis(100);
// After the system has had no descriptor to give.
constexpr Nanos kAcceptPause = Millis(200);

absl::StatusOr<std::vector<gid_t>> GroupsOf(int connection, gid_t primary) {
  socklen_t size = 64 * sizeof(gid_t);
  std::vector<gid_t> groups;
  for (int tries = 0; tries < 2; ++tries) {
    groups.resize(size / sizeof(gid_t));
    if (getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      groups.push_back(primary);
      return groups;
    }
    if (errno != ERANGE) break;
  }
  return absl::ErrnoToStatus(errno, "SO_PEERGROUPS");
}

std::optional<ino_t> SocketOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_ino;
}

absl::string_view AccessName(Access access) {
  return access == Access::kChange ? "change" : access == Access::kRead ? "read" : "none";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Door>> Door::Open(DoorOptions options, const Clock& clock) {
  std::unique_ptr<Door> door(new Door(std::move(options), clock));
  if (!door->wake_.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  door->thread_ = std::thread([raw = door.get()] { raw->Run(); });
  return door;
}

Door::Door(DoorOptions options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  listeners_.emplace_back(std::move(options_.local), false, kLocalPerSecond, kLocalBurst);
  if (options_.remote.valid()) {
    listeners_.emplace_back(std::move(options_.remote), true, kRemotePerSecond, kRemoteBurst);
  }
}

Door::~Door() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void Door::Wake() {
  const uint64_t one = 1;
  const ssize_t ignored = write(wake_.get(), &one, sizeof(one));
  (void)ignored;
}

void Door::Run() {
  for (;;) {
    const Nanos now = clock_.Now();
    std::vector<pollfd> wait = {{wake_.get(), POLLIN, 0}};
    Nanos next = now + Seconds(3600);
    for (const Listener& listener : listeners_) {
      const bool paused = listener.paused_until > now;
      if (paused) next = std::min(next, listener.paused_until);
      wait.push_back({paused ? -1 : listener.fd.get(), POLLIN, 0});
    }
    poll(wait.data(), wait.size(), static_cast<int>((next - now).count() / 1'000'000) + 1);
    if (wait[0].revents != 0) {
      uint64_t count;
      const ssize_t ignored = read(wake_.get(), &count, sizeof(count));
      (void)ignored;
      MutexLock lock(mutex_);
      if (closing_) break;
      const std::vector<std::string> keys = std::exchange(to_cut_off_, {});
      lock.Unlock();
      for (const std::string& key : keys) CutOff(key);
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (wait[i + 1].revents != 0) Accept(listeners_[i]);
    }
  }
  listeners_.clear();
  // Each waits for calls to end.
  std::vector<std::thread> closing;
  for (auto& [key, peer] : peers_) {
    closing.emplace_back([server = std::move(peer.server)]() mutable { server = nullptr; });
  }
  for (std::thread& thread : closing) thread.join();
  peers_.clear();
}

void Door::Accept(Listener& listener) {
  const Nanos now = clock_.Now();
  if (!listener.accepts.Take(now)) {
    listener.paused_until = listener.accepts.ReadyAt(now);
    return;
  }
  ipc::UniqueFd connection(
      accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection.valid()) return HandOver(listener, std::move(connection));
  // Else it stays readable, and this would not come to rest.
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    const std::string reason(absl::ErrnoToStatus(errno, "accept").message());
    spdlog::warn("event=not_accepted reason=\"{}\"", reason);
    listener.paused_until = now + kAcceptPause;
  }
}

void Door::HandOver(Listener& listener, ipc::UniqueFd connection) {
  const absl::StatusOr<Caller> caller = WhoIs(listener, connection.get());
  const std::optional<ino_t> socket = SocketOf(connection.get());
  if (!caller.ok() || !socket) return;
  if (listener.remote) {
    const int one = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }
  KnownPeer* const known = Find(*caller);
  if (known == nullptr) return;
  const Nanos now = clock_.Now();
  size_t all = 0;
  for (auto& [key, other] : peers_) {
    if (now - other.looked_at > kBetweenLooks) CountOpen(other);
    if (other.kind == known->kind) all += other.connections.size();
  }
  if (known->kind == Kind::kUser && all >= kMostOfUsers) return;
  if (known->kind == Kind::kRemote && all >= kMostRemote) return;
  if (!known->server->Admit(static_cast<int>(known->connections.size()))) return;
  const int fd = connection.Release();
  known->connections.push_back({fd, *socket});
  known->last_seen = now;
  known->server->Take(listener.fd.get(), fd);
}

absl::StatusOr<Door::Caller> Door::WhoIs(const Listener& listener, int connection) {
  if (!listener.remote) {
    ucred credentials = {};
    socklen_t size = sizeof(credentials);
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
      return absl::ErrnoToStatus(errno, "SO_PEERCRED");
    }
    HARMONY_ASSIGN_OR_RETURN(const std::vector<gid_t> groups,
                             GroupsOf(connection, credentials.gid));
    if (names_.size() > kMostPeers) names_.clear();
    std::string& name = names_[credentials.uid];
    if (name.empty()) name = UserName(credentials.uid);
    const bool owner = options_.rules.IsOwner(credentials.uid);
    return Caller{{name, options_.rules.OfUser(credentials.uid, groups)},
                  owner ? Kind::kOwner : Kind::kUser};
  }
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(connection, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::ErrnoToStatus(errno, "getpeername");
  }
  return Caller{{rpc::NetworkOf(address), std::nullopt}, Kind::kRemote};
}

Door::KnownPeer* Door::Find(const Caller& caller) {
  const Peer& peer = caller.peer;
  // Groups are those of the process that calls: one user may have several rights.
  const std::string key =
      peer.remote() ? peer.name : absl::StrCat(peer.name, " ", AccessName(*peer.access));
  if (const auto found = peers_.find(key); found != peers_.end()) return &found->second;
  const auto alike = std::count_if(peers_.begin(), peers_.end(), [&](const auto& other) {
    return other.second.kind == caller.kind;
  });
  if (static_cast<size_t>(alike) >= kMostPeers && !MakeRoom(caller.kind)) return nullptr;
  PeerServerOptions options;
  options.peer = peer;
  options.rules = &options_.rules;
  options.services = peer.remote() ? options_.remote_services : options_.local_services;
  options.certificates = options_.certificates;
  options.on_cut_off = [this, key] {
    MutexLock lock(mutex_);
    if (std::find(to_cut_off_.begin(), to_cut_off_.end(), key) != to_cut_off_.end()) return;
    to_cut_off_.push_back(key);
    lock.Unlock();
    Wake();
  };
  absl::StatusOr<std::unique_ptr<PeerServer>> server = PeerServer::Start(options, clock_);
  if (!server.ok()) {
    spdlog::error("event=no_server reason=\"{}\"", std::string(server.status().message()));
    return nullptr;
  }
  KnownPeer& known = peers_[key];
  known.server = *std::move(server);
  known.kind = caller.kind;
  return &known;
}

// Of those that have no connection, forgets the one that was seen longest ago. Its server is ended
// by another thread, one at a time, for it waits for the server's.
bool Door::MakeRoom(Kind kind) {
  if (making_room_.valid() &&
      making_room_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return false;
  }
  auto oldest = peers_.end();
  for (auto peer = peers_.begin(); peer != peers_.end(); ++peer) {
    if (peer->second.kind != kind || CountOpen(peer->second) > 0) continue;
    if (oldest == peers_.end() || peer->second.last_seen < oldest->second.last_seen) oldest = peer;
  }
  if (oldest == peers_.end()) return false;
  making_room_ =
      std::async(std::launch::async,
                 [server = std::move(oldest->second.server)]() mutable { server = nullptr; });
  peers_.erase(oldest);
  return true;
}

size_t Door::CountOpen(KnownPeer& peer) {
  std::erase_if(peer.connections, [](const Connection& connection) {
    return SocketOf(connection.fd) != connection.socket;
  });
  peer.looked_at = clock_.Now();
  return peer.connections.size();
}

void Door::CutOff(const std::string& key) {
  const auto found = peers_.find(key);
  if (found == peers_.end()) return;
  spdlog::warn("event=cut_off peer=\"{}\" reason=\"it goes on calling though it is refused\"", key);
  for (const Connection& connection : found->second.connections) {
    // Of a copy, which stays this socket when gRPC closes its own meanwhile.
    const ipc::UniqueFd copy(fcntl(connection.fd, F_DUPFD_CLOEXEC, 0));
    if (SocketOf(copy.get()) == connection.socket) shutdown(copy.get(), SHUT_RDWR);
  }
  found->second.connections.clear();
}

}  // namespace harmony::service
