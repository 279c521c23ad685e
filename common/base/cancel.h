#pragma once

// How work that takes longer than seconds (gigabytes to or from a disk) is told that nobody wants
// its result any more.

#include <atomic>

#include "absl/status/status.h"

namespace harmony {

// Aborted once `*cancelled` is true; such work looks every few megabytes. Null: it never is.
inline absl::Status CheckNotCancelled(const std::atomic<bool>* cancelled) {
  if (cancelled == nullptr || !cancelled->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::AbortedError("cancelled");
}

}  // namespace harmony
