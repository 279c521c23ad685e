#pragma once

// Little effort, for tests to which any plan will do.

#include "coordinator/planner/search.h"

namespace harmony::testing {

inline constexpr SearchOptions kQuickSearch{.work = 1'600'000};

}  // namespace harmony::testing
