#pragma once

// Measures the links by having the copy engine use them: each alone, both directions of a device at
// once, and all of all devices at once.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/profile/profile.h"
#include "swapper/transfer/copy_engine.h"

namespace harmony::swapper {

// `engine` belongs to `devices` and an arena with room for two slices (LinkSlice) of each device,
// which nobody else uses meanwhile. A quick profile spends a quarter of the time.
absl::StatusOr<std::vector<profile::DeviceProfile>> MeasureLinks(
    const std::vector<plan::DeviceSpec>& devices, CopyEngine& engine, bool quick);

// harmony-swapper --profile: reads the request, measures, writes the answer.
absl::Status AnswerLinkProfile(const std::string& request_path,
                               const std::vector<plan::DeviceSpec>& devices, CopyEngine& engine);

}  // namespace harmony::swapper
