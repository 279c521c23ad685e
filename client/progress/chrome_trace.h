#pragma once

#include <string>

#include "harmony/v1/coordinator.pb.h"

namespace harmony {

// A timeline in the Chrome trace format (a JSON object with "traceEvents"), one row a lane, lanes
// in name order, times in microseconds from the first event. chrome://tracing and Perfetto load it.
std::string ChromeTrace(const v1::Timeline& timeline);

}  // namespace harmony
