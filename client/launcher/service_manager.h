#pragma once

// What systemd wants to be told by a service of Type=notify (sd_notify(3)). Its library was not
// taken for it: the protocol is a datagram of text.

#include <optional>
#include <string>

#include "common/base/units.h"

namespace harmony::client {

// Owned by the launcher's main; one thread. Says nothing where no manager listens, and ignores that
// one has gone.
class ServiceManager {
 public:
  // Takes what names the manager out of the environment: it is not for our children.
  static ServiceManager FromEnvironment();

  void Ready() { Send("READY=1"); }
  // Once is enough; further calls say nothing.
  void Stopping();
  // We live. As often as the watchdog wants to hear it, however often this is called.
  void Alive(Nanos now);

 private:
  void Send(const std::string& text) const;

  std::string socket_;  // a path, or "@" and an abstract name; empty: there is none
  Nanos interval_;      // of signs of life; 0: none are wanted
  std::optional<Nanos> last_sign_;
  bool stopping_ = false;
};

}  // namespace harmony::client
