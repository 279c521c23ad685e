#pragma once

// How much one peer may ask for. Values only: times come as arguments. What is beyond the limits is
// answered cheaply, and who goes on is cut off for a while, so that what a peer costs is bounded
// however fast it is.

#include <string>

#include "common/base/units.h"

namespace harmony::service {

// Fills at `per_second` up to `burst`; starts full.
class TokenBucket {
 public:
  TokenBucket(double per_second, double burst)
      : per_second_(per_second), burst_(burst), tokens_(burst) {}

  // Takes that many, or none when there are fewer. `now` never goes back.
  bool Take(Nanos now, double tokens = 1);
  // When that many will be there, if nobody takes any.
  Nanos ReadyAt(Nanos now, double tokens = 1);

 private:
  void Fill(Nanos now);
  const double per_second_, burst_;
  double tokens_;
  Nanos filled_at_;
};

// Of a local user. A script that starts a command of `harmony` every few milliseconds stays below
// all of them.
struct PeerLimits {
  double calls_per_second = 100, calls_burst = 400;
  // What is refused costs a call as well, some 50 us of a core: beyond these a peer is cut off.
  double refusals_per_second = 20, refusals_burst = 200;
  double connects_per_second = 100, connects_burst = 400;
  int connections = 64;
  Nanos cut_off = Seconds(1);
};

// Of a remote address. A handshake takes some 2 ms of a core, and is done before anybody is known.
constexpr PeerLimits RemoteLimits() {
  PeerLimits limits;
  limits.connects_per_second = 10;
  limits.connects_burst = 40;
  limits.connections = 16;
  return limits;
}

// What happens to a call.
enum class Verdict {
  kServe,
  kRefuse,  // RESOURCE_EXHAUSTED
  kCutOff,  // likewise, and all connections of the peer are to be closed
};

// One peer's account.
class PeerAccount {
 public:
  explicit PeerAccount(const PeerLimits& limits);

  // A new connection of a peer that has `open` of them; false: it is to be closed at once.
  bool Connect(Nanos now, int open);
  // `weight`: of a call that keeps a core busy for longer than others.
  Verdict Call(Nanos now, double weight = 1);

 private:
  const PeerLimits limits_;
  TokenBucket calls_, refusals_, connects_;
  Nanos cut_off_until_;
};

// How many of a peer's calls a call counts for, by its path: planning keeps a core busy.
double WeightOf(const std::string& path);

}  // namespace harmony::service
