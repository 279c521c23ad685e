#pragma once

// Which groups keep their weights, or their activations, on the device from forward to backward.
// PURE.

#include <optional>

#include "absl/functional/function_ref.h"
#include "common/plan/plan.h"

namespace harmony::planner {

// Modelled time of a plan; nothing when it does not fit.
using PlanTime = absl::FunctionRef<std::optional<Nanos>(const plan::Plan&)>;

// The plan with LayerGroup::keep_weights set wherever it still fits and is not slower.
plan::Plan KeepWeights(plan::Plan plan, PlanTime time_of);
// The same with LayerGroup::keep_activations (and the stashes of these groups).
plan::Plan KeepActivations(plan::Plan plan, PlanTime time_of);

}  // namespace harmony::planner
