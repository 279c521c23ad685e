#pragma once

// When commands start and finish as modelled, lane by lane, while they are issued: a lane carries
// its commands one after the other, and lanes that share a
// resource take turns on it.
//
// Owner: Generation. Single-threaded. The times order the issue of commands and choose ways; no
// result of a run depends on them. PURE.

#include <cstdint>
#include <vector>

#include "common/plan/lane_resources.h"
#include "coordinator/dispatch/issue/link_clock.h"
#include "coordinator/dispatch/memory/region_ledger.h"

namespace harmony::dispatch {

class ModelledClock {
 public:
  explicit ModelledClock(plan::LaneResources resources);

  const plan::LaneResources& resources() const { return resources_; }

  // When the last command issued on the lane will have finished.
  Nanos free_at(int lane) const { return lanes_[static_cast<size_t>(lane)].free_at; }

  // The lane's next command, whose waits are over at `ready`: when it will have finished. Its lane,
  // but no resource that lanes share, is taken by `stall` longer.
  Nanos Issue(int lane, Nanos ready, Nanos duration, Nanos stall = {});
  // The same, were it issued now.
  Nanos FinishIfIssued(int lane, Nanos ready, Nanos duration) const;
  // Of a lane's command that signals `value`, from 1 on, if it is one of the last ones; those
  // before have finished long ago.
  Nanos FinishOf(int lane, uint64_t value) const;

 private:
  static constexpr uint64_t kRemembered = 1024;
  struct Lane {
    uint64_t issued = 0;
    Nanos free_at;
    std::vector<Nanos> finishes;  // of value 1, 2, ...; the last ones, by turns
  };

  // Of those of the lane's resource, the server that would have the command done first.
  size_t ServerFor(int lane, Nanos ready, Nanos duration) const;

  const plan::LaneResources resources_;
  std::vector<Lane> lanes_;
  const plan::LaneServers servers_of_;
  std::vector<LinkClock> servers_;
};

}  // namespace harmony::dispatch
