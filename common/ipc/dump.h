#pragma once

// The segment as text, for people.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ipc/segment.h"

namespace harmony::ipc {

// Header, generation, job, semaphores that are not zero, records that are not free, update cursors
// in progress. Reads only; damaged parts are named, not fatal. Thread-safe.
std::string DumpSegment(const Segment& segment);

// The same for a path such as /proc/PID/fd/N.
absl::StatusOr<std::string> DumpSegmentFile(absl::string_view path);

}  // namespace harmony::ipc
