#pragma once

// A job on some devices: Harmony's plan beside what people do today, as a table and as JSON. PURE.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/baselines/baseline.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::baselines {

struct Comparison {
  std::string model;
  std::string devices;
  int64_t batch = 0;            // samples of a step
  int64_t sequence_length = 0;  // tokens of a sample; 1 where samples are no sequences
  std::string basis;            // what the times rest on; empty where nothing was planned
  Outcome harmony;
  std::vector<Outcome> others;
};

// What Harmony's plan comes to, from our own evaluation of it. `estimate`: EvaluatePlan of it with
// the same costs.
Outcome HarmonyOutcome(const model::ModelSpec& model, const plan::Plan& plan,
                       const planner::Estimate& estimate);
// There is no plan, for a reason that is none of the job file's.
Outcome HarmonyWithoutPlan(const absl::Status& why);

std::string ComparisonText(const Comparison& comparison);
std::string ComparisonJson(const Comparison& comparison);

}  // namespace harmony::baselines
