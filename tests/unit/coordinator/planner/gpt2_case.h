#pragma once

// GPT-2 124M, a job of it, and plans that take a moment.

#include "common/model/families/causal_lm.h"
#include "coordinator/planner/planner.h"
#include "tests/support/quick_search.h"

namespace harmony {

inline ModelSpec Gpt2(int64_t sequence_length = 256) {
  const std::string json = *PresetConfigJson("gpt2-124m");
  return BuildModelSpec(*ParseModelConfig(json, "gpt2-124m"), sequence_length);
}

inline JobSpec Gpt2Job() {
  JobSpec job;
  job.sequence_length = 256;
  job.global_batch_size = 32;
  job.micro_batch_size = 2;
  return job;
}

inline MachineSpec Machine(absl::string_view devices) {
  MachineSpec machine;
  machine.devices = *ParseDevices(devices);
  return machine;
}

// These tests are about what the planner keeps to and says, not about how good a plan is.
inline absl::StatusOr<PlanResult> PlanQuickly(const ModelSpec& model, const JobSpec& job,
                                              const MachineSpec& machine,
                                              PlannerOptions options = {}) {
  options.search = testing::kQuickSearch;
  options.model_of_length = Gpt2;
  return MakePlan(model, job, machine, options);
}

}  // namespace harmony
