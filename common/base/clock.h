#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/base/units.h"

namespace harmony {

// Where a part that needs the time gets it from; tests and the simulator pass a virtual one. Pure
// logic takes no clock at all: it is handed `now` with each event.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, from an arbitrary origin.
  virtual Nanos Now() const = 0;
};

// CLOCK_MONOTONIC. The same origin for every process of a machine, so traces of several processes
// line up. Thread-safe.
const Clock& MonotonicClock();

// A time of the wall clock, RFC 3339 in UTC with milliseconds; of two the later one is the greater
// text. Without a time: now.
std::string UtcTimeStamp(absl::Time time);
std::string UtcTimeStamp();
// The same in logs: of a pattern of spdlog, with pattern_time_type::utc.
inline constexpr char kLogTime[] = "%Y-%m-%dT%H:%M:%S.%eZ";

}  // namespace harmony
