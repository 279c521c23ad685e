#pragma once

#include <thread>

#include "absl/functional/function_ref.h"

namespace harmony::runtime {

// Returns when both have run, the second on a thread of its own.
inline void RunBoth(absl::FunctionRef<void()> first, absl::FunctionRef<void()> second) {
  std::thread thread(second);
  first();
  thread.join();
}

}  // namespace harmony::runtime
