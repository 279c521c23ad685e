#pragma once

// Measures what the host worker does, by having its executor do it: on a small model of its own in
// the segment's job, which nobody else uses meanwhile.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/segment.h"
#include "common/profile/profile.h"
#include "common/runtime/profile_call.h"

namespace harmony::worker {

// All that is measured is, for nothing is recovered: the first that the segment's job begins.
inline constexpr uint32_t kProfileGeneration = 1;

// `segment` holds a job for HostWorkloadOf(call) and a generation 1 that has begun. `scratch`: an
// existing directory that only this process uses. `paced`: norms and updates are no faster, as in a
// run; 0: as fast as they are.
absl::StatusOr<profile::HostProfile> MeasureHost(ipc::Segment& segment,
                                                 const runtime::ProfileCall& call,
                                                 const std::string& scratch, BytesPerSecond paced);

}  // namespace harmony::worker
