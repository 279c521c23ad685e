#pragma once

// Takes in the connections of the public sockets, finds out whose they are, and hands each to its
// peer's server; what is beyond the limits is closed before gRPC sees it.
//
// One thread of its own, which ends with the object, and whose work is bounded: connections wait
// in the kernel once as many have come as it takes in a second.

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/ipc/fd_passing.h"
#include "coordinator/service/access/limits.h"
#include "coordinator/service/access/peer_server.h"

namespace harmony::service {

struct DoorOptions {
  ipc::UniqueFd local;   // listens on a Unix socket
  ipc::UniqueFd remote;  // listens for TCP; invalid: no
  AccessRules rules;
  std::vector<grpc::Service*> local_services, remote_services;  // outlive the door
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> certificates;  // with `remote`
};

class Door {
 public:
  static absl::StatusOr<std::unique_ptr<Door>> Open(DoorOptions options, const Clock& clock);
  ~Door();  // closes all
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

 private:
  struct Listener {
    Listener(ipc::UniqueFd socket, bool is_remote, double per_second, double burst)
        : fd(std::move(socket)), remote(is_remote), accepts(per_second, burst) {}
    ipc::UniqueFd fd;
    bool remote;
    TokenBucket accepts;
    Nanos paused_until;
  };
  // Of a peer. The descriptor is gRPC's, which may have closed it: it is this connection as long
  // as it is that socket.
  struct Connection {
    int fd;
    ino_t socket;
  };
  // Each kind has room of its own: remote machines cannot take that of local users, nor other users
  // that of the owner and of root.
  enum class Kind { kOwner, kUser, kRemote };
  struct KnownPeer {
    std::unique_ptr<PeerServer> server;
    Kind kind = Kind::kOwner;
    std::vector<Connection> connections;
    Nanos last_seen;
    Nanos looked_at;  // which of them there still are
  };

  Door(DoorOptions options, const Clock& clock);
  void Run();
  void Accept(Listener& listener);
  void HandOver(Listener& listener, ipc::UniqueFd connection);
  struct Caller {
    Peer peer;
    Kind kind;
  };
  absl::StatusOr<Caller> WhoIs(const Listener& listener, int connection);
  // Null: there are too many.
  KnownPeer* Find(const Caller& caller);
  bool MakeRoom(Kind kind);
  size_t CountOpen(KnownPeer& peer);
  void CutOff(const std::string& key);
  void Wake();

  DoorOptions options_;
  const Clock& clock_;
  ipc::UniqueFd wake_;  // an eventfd
  std::vector<Listener> listeners_;
  // Of the thread.
  std::map<std::string, KnownPeer> peers_;
  std::map<uid_t, std::string> names_;  // looking one up may take long
  Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> to_cut_off_ ABSL_GUARDED_BY(mutex_);  // keys of peers_
  std::future<void> making_room_;  // for another peer; waited for before all else goes
  std::thread thread_;
};

}  // namespace harmony::service
