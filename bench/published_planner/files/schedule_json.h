#pragma once

// Four-tuples as the reference data write them: u_fwd, pack_fwd, u_bwd, pack_bwd; packs as
// [first, last] pairs.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/published_planner/cost_model/schedule.h"

namespace harmony::published {

// InvalidArgument names `where` (the file) and the field. Other keys are ignored, so an entry of
// the reference data can be given as it is.
absl::StatusOr<Schedule> ParseSchedule(absl::string_view text, absl::string_view where);

absl::StatusOr<Schedule> ReadSchedule(const std::string& path);

}  // namespace harmony::published
