#pragma once

// Little effort, for tests to which any plan will do.

#include "coordinator/planner/search/search.h"

namespace harmony::testing_support {

inline constexpr planner::SearchOptions kQuickSearch{.work = 1'600'000, .share = 1};

}  // namespace harmony::testing_support
