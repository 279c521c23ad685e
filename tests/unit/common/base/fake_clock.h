#pragma once

#include "common/base/clock.h"

namespace harmony {

// A clock that stands still until the test moves it.
class FakeClock : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = Seconds(1000);
};

}  // namespace harmony
