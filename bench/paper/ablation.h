#pragma once

// Harmony's plan with one of its optimisations switched off by itself: what each is worth (VLDB
// 2022, section 3, names them; the paper switches off input-batch grouping, just-in-time updates,
// P2P, prefetch and packing). PURE.

#include <string>
#include <vector>

#include "bench/published_planner/ours/imported_model.h"
#include "common/plan/plan.h"

namespace harmony::paper {

struct Ablated {
  std::string what;  // is off
  bool fits = false;
  Nanos step;
  int64_t host_link_bytes = 0;  // of a step, all devices together
};

// Of a plan of the model. Where something can be done without in several ways, the fastest; nothing
// is searched anew. What a plan does not use (P2P where there is one device) is left out.
std::vector<Ablated> SwitchOff(const published::ImportedModel& imported, const plan::Plan& plan);

}  // namespace harmony::paper
