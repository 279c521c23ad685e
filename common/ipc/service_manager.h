#pragma once

// What systemd wants to be told by a service of Type=notify (sd_notify(3)), and the descriptors
// that it keeps for one (sd_listen_fds(3)). Its library was not taken for it: the protocol is a
// datagram of text.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"
#include "common/ipc/fd_passing.h"

namespace harmony::ipc {

struct NamedFd {
  std::string name;
  UniqueFd fd;
};

// Owned by who speaks for the process; calls are not made by two threads at once. Movable. Says
// nothing where no manager listens, and ignores that one has gone.
class ServiceManager {
 public:
  // Nobody listens.
  ServiceManager() = default;
  // Takes what names the manager out of the environment: it is not for our children.
  static ServiceManager FromEnvironment();

  void Ready() { Send("READY=1"); }
  // Once is enough; further calls say nothing. From now on every sign of life asks for another
  // minute to stop in: who takes long is not killed before it falls silent.
  void Stopping();
  // We live. As often as the watchdog wants to hear it, however often this is called.
  void Alive(Nanos now);
  // Has the manager keep a descriptor until the service has been stopped, and not only died. OK
  // where no manager listens; else when it has been handed over.
  absl::Status Keep(absl::string_view name, int fd) const;
  // The manager forgets those of this name.
  absl::Status Forget(absl::string_view name) const;

 private:
  void Send(const std::string& text) const;
  absl::Status SendAndWait(const std::string& text, int fd) const;

  std::string socket_;  // a path, or "@" and an abstract name; empty: there is none
  Nanos interval_;      // of signs of life; 0: none are wanted
  std::optional<Nanos> last_sign_;
  bool stopping_ = false;
};

// How many descriptors, from kFirstHandedFd on, a service manager has handed to this process.
inline constexpr int kFirstHandedFd = 3;
int HandedFdCount();
// Takes them over, close-on-exec, with the names that the manager gives them, and out of the
// environment. FailedPrecondition when one is not open. Call once.
absl::StatusOr<std::vector<NamedFd>> TakeHandedFds();
// The one of them that listens, for a service that is given one by a socket unit of its own; none
// when there are none. FailedPrecondition when there are others, or it does not listen on `path`.
absl::StatusOr<UniqueFd> TakeHandedSocket(const std::string& path);

}  // namespace harmony::ipc
