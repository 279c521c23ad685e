#include "common/base/clock.h"

#include <ctime>

#include "absl/time/clock.h"
#include "absl/time/time.h"

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

std::string UtcTimeStamp() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

}  // namespace harmony
