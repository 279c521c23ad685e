#pragma once

// What `harmony plan --cost-model harmony --import-profile` prints: a plan by our own cost model.

#include <string>

#include "coordinator/planner/evaluation.h"
#include "coordinator/planner/paper/layer_profile.h"
#include "coordinator/planner/paper/schedule.h"

namespace harmony::paper {

struct JudgeReport {
  Machine machine;
  Mode mode = Mode::kPipeline;
  int64_t minibatch = 0;
  Plan plan;
  harmony::Estimate estimate;
  bool fits = true;       // a given schedule: by our count of memory
  bool searched = false;  // the rest only then
  double lower_bound_s = 0, search_s = 0;
  int64_t bounded = 0, simulations = 0;
  int sizes = 0;
};

// Keys as in the reference data where they have one; "plan" is a plan as it can be stored.
std::string ToJsonText(const LayerProfile& profile, const JudgeReport& report);
std::string ToText(const LayerProfile& profile, const JudgeReport& report);
// Each group with its memory, and how busy each lane is. `model`: as imported.
std::string Explanation(const ModelSpec& model, const JudgeReport& report);

}  // namespace harmony::paper
