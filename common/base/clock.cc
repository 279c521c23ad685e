#include "common/base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace harmony {
namespace {

class SystemMonotonicClock final : public Clock {
 public:
  Nanos Now() const override {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return Nanos(int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec);
  }
};

}  // namespace

const Clock& MonotonicClock() {
  static const SystemMonotonicClock clock;
  return clock;
}

std::string UtcTimeStamp(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

std::string UtcTimeStamp() { return UtcTimeStamp(absl::Now()); }

}  // namespace harmony
