#pragma once

// Searching a plan again for a job that runs, by what its run has measured: the key `replan`.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/plan/job_spec.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "common/plan/profile.h"
#include "coordinator/core/calibrated_costs.h"
#include "coordinator/service/admission.h"
#include "coordinator/service/forecast.h"

namespace harmony {

// What is kept of the last search with the job.
struct ReplanState {
  int64_t step = -1;     // steps that were complete then; -1: nothing was searched again
  bool changed = false;  // the plan in force was found so
  Calibration calibration;
};
std::string ReplanStateToText(const ReplanState& state);
// An empty text: none. Internal when it is damaged.
absl::StatusOr<ReplanState> ReplanStateFromText(absl::string_view text, absl::string_view where);

// Steps between two searches, at least: a machine that changes all the time is not followed.
inline constexpr int64_t kStepsBetweenSearches = 50;
// What a plan must save to be worth a word, by its prediction.
inline constexpr double kWorthAWord = 0.05;

struct ReplanRequest {
  ModelSpec model;
  JobSpec job;
  Plan plan;  // in force
  std::shared_ptr<const Profile> profile;
  Calibration calibration;
  MachineSpec machine;
  HostLimits limits;
};

struct ReplanAnswer {
  absl::Status status;          // of the search
  std::optional<Forecast> now;  // of the plan in force, as calibrated
  // Of the plan that was found; nothing when it is not faster by kWorthAWord.
  std::optional<Forecast> then;
  Plan plan;
  std::string plan_text;
  double seconds = 0;  // that it took
  // What it saves of a step's time, 0 to 1. REQUIRES: `then`.
  double gain() const { return 1 - then->step_seconds / now->step_seconds; }
};

// The microbatch size stays, so that results stay bit-identical. Takes seconds; any thread.
ReplanAnswer SearchAgain(const ReplanRequest& request);

// Whether a change (a checkpoint, written and read again) costs less time than it saves.
bool PaysOff(const ModelSpec& model, const ReplanAnswer& answer, int64_t steps_left);

// "tasks 1.02 to 1.1 of the modelled time, copies in 5.1, out 1, ..., updates 0.9"
std::string DescribeCalibration(const Calibration& calibration);

// "5 forward and 6 backward layer groups on 2 devices, updates eager, ..."
std::string OutlineOf(const Plan& plan);

}  // namespace harmony
