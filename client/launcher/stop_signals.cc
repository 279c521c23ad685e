#include "client/launcher/stop_signals.h"

#include <initializer_list>

namespace harmony::client {

sigset_t SignalsThatStop() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  // A blocked signal is delivered to a signalfd even where it is ignored.
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  return set;
}

}  // namespace harmony::client
