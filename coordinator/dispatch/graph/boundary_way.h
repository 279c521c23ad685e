#pragma once

// Which way a boundary tensor goes to a task on another device: from device to device (P2P), or by
// way of the host, out (D2H) and in (H2D). PURE.

#include "common/base/units.h"

namespace harmony::dispatch {

enum class Way : uint8_t {
  kDirect,  // the send is issued, the copies by way of the host are not, unless the stash or an
            // update needs the tensor there
  kByHost,
};

// What the copies of one tensor take. The same for all that one execution passes on.
struct WayDurations {
  Nanos send, out, in;
};

// What the choice goes by: when the tensor would be at the consumer, as modelled, with the lanes
// and links as they are when it is chosen.
struct WayTimes {
  // The consumer has its memory, and a slot that is free or that a task which is issued will free.
  // Elsewise a send would wait for a later execution, and the issuing could lock up.
  bool can_send = false;
  Nanos direct, by_host;
  // How long the copies that only the way by the host needs keep the links of the host, which all
  // weights take.
  Nanos host_work;
};

// The earlier one. Where the way by the host is ahead by less than it costs the host's links, P2P.
inline Way ChooseWay(const WayTimes& times) {
  return times.can_send && times.direct <= times.by_host + times.host_work ? Way::kDirect
                                                                           : Way::kByHost;
}

}  // namespace harmony::dispatch
