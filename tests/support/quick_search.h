#pragma once

// Little effort, for tests to which any plan will do.

#include "coordinator/planner/search.h"

namespace harmony::testing {

inline constexpr SearchOptions kQuickSearch{.commands = 20'000, .tasks = 1'000'000};

}  // namespace harmony::testing
