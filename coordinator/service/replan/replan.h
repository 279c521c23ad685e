#pragma once

// Searching a plan again for a job that runs, by what its run has measured: the key `replan`.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/plan/machine.h"
#include "common/plan/planned_job.h"
#include "common/profile/profile.h"
#include "coordinator/dispatch/costs/scaled_costs.h"
#include "coordinator/service/jobs/admission.h"
#include "coordinator/service/replan/forecast.h"

namespace harmony::service {

// What is kept of searches and changes with the job.
struct ReplanState {
  int64_t step = -1;        // steps that were complete at the last of them; -1: there was none
  int changes = 0;          // of the plan, so far
  int64_t changed_at = -1;  // steps that were complete at the last one
  // A step before it, in the median; 0: what the change brought is known already.
  double seconds_before = 0;
  bool in_vain = false;  // it made steps no shorter
  dispatch::CostScales scales;
};
std::string ReplanStateToText(const ReplanState& state);
// An empty text: none. Internal when it is damaged.
absl::StatusOr<ReplanState> ReplanStateFromText(absl::string_view text, absl::string_view where);

// Steps between two searches, at least. Each change of plan doubles them, and one in vain makes
// them this many times more: a machine that changes all the time is not followed.
inline constexpr int64_t kStepsBetweenSearches = 50, kPatienceAfterNothing = 10;
// By how many steps a change is judged, and what of their time it must have saved.
inline constexpr int64_t kStepsToJudge = 20;
inline constexpr double kWorthTheChange = 0.03;
// Not before so many steps are complete.
int64_t NextSearch(const ReplanState& state);
// The plan was changed after `step` steps, which had taken `seconds_before` each.
void CountChange(int64_t step, double seconds_before, ReplanState* state);
// Holds the median of steps since the last change against those before it. A line for the user.
// REQUIRES: state->seconds_before > 0.
std::string JudgeChange(double seconds, ReplanState* state);

// What a plan must save to be worth a word, by its prediction.
inline constexpr double kWorthAWord = 0.05;

struct ReplanRequest : plan::PlannedJob {
  std::shared_ptr<const profile::Profile> profile;
  dispatch::CostScales scales;
  plan::MachineSpec machine;
  HostLimits limits;
  double measured_seconds = 0;  // a step, in the median
};

struct ReplanAnswer {
  absl::Status status;          // of the search
  std::optional<Forecast> now;  // of the plan in force, by `scales`
  // Of the plan that was found; nothing when it is not faster by kWorthAWord.
  std::optional<Forecast> then;
  plan::Plan plan;
  std::string plan_text;
  double measured_seconds = 0;  // as the request has it
  // What it saves of a step's time, 0 to 1. REQUIRES: `then`.
  double gain() const { return 1 - then->step_seconds / now->step_seconds; }
};

// The microbatch size stays, so that results stay bit-identical. Takes seconds; any thread.
ReplanAnswer SearchAgain(const ReplanRequest& request);

// Whether a change (a checkpoint, written and read again) costs less time than it saves.
bool PaysOff(const model::ModelSpec& model, const ReplanAnswer& answer, int64_t steps_left);

// "tasks 1.02 to 1.1 of the modelled time, copies in 5.1, out 1, ..., updates 0.9"
std::string DescribeScales(const dispatch::CostScales& scales);

// "5 forward and 6 backward layer groups on 2 devices, updates eager, ..."
std::string OutlineOf(const plan::Plan& plan);

}  // namespace harmony::service
