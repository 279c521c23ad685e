#pragma once

// How far a job has come, by what is committed. PURE.

#include <array>
#include <cstdint>
#include <vector>

#include "common/command/objects.h"

namespace harmony::runner {

// The greater the further: updates, then gradients, then all else. Gradients go with the update,
// and most else before: summed up in one number, the middle of a late step would be more than the
// beginning of many that follow it.
using Progress = std::array<int64_t, 3>;

Progress ProgressOf(const command::ObjectTableLayout& table,
                    const std::vector<command::ObjectView>& records);

}  // namespace harmony::runner
