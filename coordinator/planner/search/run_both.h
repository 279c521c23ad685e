#pragma once

// Two parts of a search that need nothing of each other: who has threads runs them at the same
// time. The result is the same. PURE.

#include <functional>

#include "absl/functional/function_ref.h"

namespace harmony::planner {

using RunBoth =
    std::function<void(absl::FunctionRef<void()> first, absl::FunctionRef<void()> second)>;

inline void OneAfterTheOther(absl::FunctionRef<void()> first, absl::FunctionRef<void()> second) {
  first();
  second();
}

}  // namespace harmony::planner
