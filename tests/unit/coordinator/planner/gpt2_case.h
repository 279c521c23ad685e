#pragma once

// GPT-2 124M, a job of it, and plans that take a moment.

#include "common/model/families/causal_lm.h"
#include "coordinator/planner/planner.h"
#include "tests/support/quick_search.h"

namespace harmony::planner {

inline model::ModelSpec Gpt2(int64_t sequence_length = 256) {
  const std::string json = *model::PresetConfigJson("gpt2-124m");
  return model::BuildModelSpec(*model::ParseModelConfig(json, "gpt2-124m"), sequence_length);
}

inline job::JobSpec Gpt2Job() {
  job::JobSpec job;
  job.sequence_length = 256;
  job.global_batch_size = 32;
  job.micro_batch_size = 2;
  return job;
}

inline constexpr char kFourPaced[] = "sim*4:mem=2GiB,flops=100G,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s";
inline plan::MachineSpec Machine(absl::string_view devices) {
  plan::MachineSpec machine;
  machine.devices = *plan::ParseDevices(devices);
  return machine;
}

// These tests are about what the planner keeps to and says, not about how good a plan is.
inline absl::StatusOr<PlanResult> PlanQuickly(const model::ModelSpec& model,
                                              const job::JobSpec& job,
                                              const plan::MachineSpec& machine,
                                              PlannerOptions options = {}) {
  options.search = testing_support::kQuickSearch;
  options.model_of_length = Gpt2;
  return MakePlan(model, job, machine, options);
}

}  // namespace harmony::planner
