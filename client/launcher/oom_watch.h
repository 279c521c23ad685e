#pragma once

// Whether a process that is found dead of SIGKILL may have been killed by the kernel for want of
// memory: it kills as an operator does, and tells only its own log whom. PURE.

#include <cstdint>
#include <optional>

#include "common/base/units.h"

namespace harmony::client {

class OomWatch {
 public:
  // A process with much memory takes so long to be gone.
  static constexpr Nanos kDying = Seconds(20);

  // To be called several times a second, and before MayHaveKilled(). `kills`: ipc::OomKills().
  void Look(std::optional<int64_t> kills, Nanos now) {
    if (kills && last_ && *kills > *last_) risen_ = now;
    if (kills) last_ = kills;
  }
  bool MayHaveKilled(Nanos now) const { return risen_ && now - *risen_ < kDying; }

 private:
  std::optional<int64_t> last_;
  std::optional<Nanos> risen_;
};

}  // namespace harmony::client
