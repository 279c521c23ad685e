#pragma once

#include <string>

#include "harmony/v1/coordinator.pb.h"

namespace harmony::client {

// A timeline in the Chrome trace format (a JSON object with "traceEvents"), which Perfetto and
// chrome://tracing load: a process for each device and for the host, in it two rows a lane,
// measured and planned. Where a lane stood idle for want of a command, the measured row says so
// ("waiting for commands").
std::string ChromeTrace(const v1::Timeline& timeline);

}  // namespace harmony::client
