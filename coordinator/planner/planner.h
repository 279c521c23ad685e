#pragma once

// From a model, a job and a machine to a plan, and what to say about it. PURE.
//
// What is decided: the boundaries of forward and backward groups, each by itself, the device of
// each group, the sizes of backward and forward tasks (where the job leaves them open), eager or
// deferred updates, slots of the streaming buffers. Plans are compared, and proved to run, by the
// real dispatcher under a virtual clock (evaluation.h); what cannot win is put aside by lower
// bounds (bounds.h) before that.

#include <string>

#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "coordinator/planner/fit/fit_advice.h"
#include "coordinator/planner/report/alternatives.h"
#include "coordinator/planner/search/run_both.h"
#include "coordinator/planner/search/search.h"

namespace harmony::planner {

struct PlannerOptions {
  // Empty: from the speeds of the machine's devices.
  dispatch::CostFactory costs;
  // The same with one more device like the last one, where that is known.
  dispatch::CostFactory costs_with_one_more;
  // What these costs rest on, a sentence.
  std::string basis = "measured: times of the profile";
  // They are an estimate that differs from one measuring to the next: it does not decide the
  // microbatch size, which is part of what fixes the result.
  bool rough = false;
  SearchOptions search;
  // What `micro_batch_size: auto` was resolved to when the run began; 0: it begins now.
  int64_t microbatch_size = 0;
  // The same of `virtual_replicas: auto`.
  int replicas = 0;
  // What to say of it in detail is wanted: the timeline of a step, and what loses by how much.
  bool explain = false;
  RunBoth run_both = OneAfterTheOther;
  // For advice about shorter sequences where nothing fits.
  ModelOfLength model_of_length;
  // A plan that is given (ParsePlanFile), nothing is searched; and the name of its file.
  const plan::Plan* given = nullptr;
  std::string given_path;
};

struct PlanResult {
  plan::Plan plan;
  Estimate estimate;  // with the timeline when it is to be explained
  SearchReport report;
  std::vector<Alternative> alternatives;  // when it is to be explained
  // Then, where it is known: the step with one more device like the last. 0: it is not.
  Nanos with_one_more;
  std::string basis;  // what the estimate rests on, a sentence
  bool searched = true;
  // virtual_replicas: auto is less than what divides a step, since the host has no room for the
  // gradients of more.
  bool fewer_replicas_for_host = false;
  double search_seconds = 0;  // filled in by who has a clock
};

// InvalidArgument or Unimplemented: names the job's key. ResourceExhausted: names the group that
// fits no plan, its device, the bytes missing and what would fit; or the host memory that is
// missing (checked where machine.host_memory is not zero).
absl::StatusOr<PlanResult> MakePlan(const model::ModelSpec& model, const job::JobSpec& job,
                                    const plan::MachineSpec& machine,
                                    const PlannerOptions& options = {});

// Need and fit of each device and of the host, groups, minimal swap, time; with the detail that the
// result has.
std::string ExplainPlan(const model::ModelSpec& model, const PlanResult& result,
                        const plan::MachineSpec& machine);
// The same for programs. Its field "plan" is what ParsePlanFile reads.
std::string PlanToJson(const model::ModelSpec& model, const PlanResult& result,
                       const plan::MachineSpec& machine);

}  // namespace harmony::planner
