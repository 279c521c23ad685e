#pragma once

// What a plan's time is made of, as text and as JSON. PURE.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "coordinator/planner/planner.h"

namespace harmony::planner {

double TokensPerSecond(const PlanResult& result);
// Share of the step above the lower bound, e.g. 0.05.
double GapOf(const PlanResult& result);

std::string TimeText(const PlanResult& result);
// An object.
nlohmann::ordered_json TimeJson(const PlanResult& result);

}  // namespace harmony::planner
