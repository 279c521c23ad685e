#pragma once

// Layer profiles in the "layer-profile/1" form (README.md): text in, checked profile
// out.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/published_planner/cost_model/layer_profile.h"

namespace harmony::published {

// InvalidArgument names `where` (the file) and the field: another schema, a missing or wrongly
// typed field, and all that CheckProfile finds. Keys of no meaning to the planner are ignored.
absl::StatusOr<LayerProfile> ParseLayerProfile(absl::string_view text, absl::string_view where);

absl::StatusOr<LayerProfile> ReadLayerProfile(const std::string& path);

}  // namespace harmony::published
