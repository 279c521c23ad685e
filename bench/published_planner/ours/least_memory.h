#pragma once

// With how little memory a plan still runs.

#include <vector>

#include "coordinator/planner/fit/device_need.h"

namespace harmony::published {

// By device: memory that is just enough for the plan, in whole pages and with one to spare; without
// what the device's context takes.
inline std::vector<Bytes> LeastMemory(const model::ModelSpec& model, const plan::Plan& plan) {
  constexpr int64_t kPage = 4096;  // the dispatcher's regions are whole ones
  std::vector<Bytes> memory;
  for (const planner::DeviceNeed& need :
       planner::NeedOfDevices(plan, planner::NeedOfGroups(model, plan))) {
    memory.push_back(need.total().AlignUp(kPage) + Bytes(kPage));
  }
  return memory;
}

}  // namespace harmony::published
