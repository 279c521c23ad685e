#pragma once

// Errors that say that host memory is too little for a plan, so that a caller who can make do with
// less of it can tell them from others.

#include <utility>

#include "absl/status/status.h"

namespace harmony::planner {

inline constexpr char kHostMemoryPayload[] = "harmony/host-memory";

inline absl::Status HostMemoryError(absl::Status status) {
  status.SetPayload(kHostMemoryPayload, absl::Cord());
  return status;
}
inline bool IsHostMemoryError(const absl::Status& status) {
  return status.GetPayload(kHostMemoryPayload).has_value();
}

}  // namespace harmony::planner
