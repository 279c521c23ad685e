#pragma once

// The files of output_dir that say what a run was: plan.json, run.json and summary.json. A disk
// that is full ends no run: what cannot be written is kept in mind and tried again.

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "coordinator/runner/failure.h"
#include "coordinator/service/jobs/job_registry.h"
#include "coordinator/service/processes/members.h"
#include "coordinator/service/run/job_run.h"

namespace harmony::service {

// Of one run; `record` is always that of its job. Owner: Coordinator; loop thread only. The run,
// the registry, which is told what is put off, the members and the clock must outlive it.
class OutputFiles {
 public:
  // `first_step`: so many steps were done before the run. `begun`: when it was, by `clock`.
  OutputFiles(const JobRun* run, JobRegistry* registry, const Members* members, const Clock* clock,
              int64_t first_step, Nanos begun)
      : run_(run),
        registry_(registry),
        members_(members),
        clock_(clock),
        first_step_(first_step),
        begun_(begun) {}

  // plan.json, at every start: the plan may be another one by now. Where it cannot be written,
  // OnTick tries again.
  absl::Status WritePlan(const store::JobRecord& record);
  void OnTick(const store::JobRecord& record, Nanos now);
  // With each step. In run.json: what the run's steps are computed on, once; other hardware than
  // before is reported. What cannot be written is tried with the next step.
  void OnStep(const store::JobRecord& record);

  // summary.json, and the record's summary.
  absl::Status WriteSummary(store::JobRecord& record);
  // Of a run that has done all its steps: summary.json, a missing plan.json, and that it is
  // finished in run.json.
  absl::Status WriteEnd(store::JobRecord& record);
  // WriteEnd has failed with `status` at `now`: it is due after a pause, of which the job's log is
  // told.
  void PutEndOff(const store::JobRecord& record, const absl::Status& status, Nanos now);
  bool EndIsDue(Nanos now) const { return !end_tries_.failing() || end_tries_.Due(now); }
  // What was put off is due at once.
  void HurryEnd() { end_tries_.Hurry(); }

 private:
  const JobRun* const run_;
  JobRegistry* const registry_;
  const Members* const members_;
  const Clock* const clock_;
  const int64_t first_step_;
  const Nanos begun_;
  runner::BackOff plan_tries_;
  runner::BackOff end_tries_;
  bool hardware_noted_ = false;
};

}  // namespace harmony::service
