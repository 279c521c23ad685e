// Another plan for a job: for other devices than it was planned for, or for one that runs.

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/ipc/host_memory.h"
#include "common/plan/arena_layout.h"
#include "common/plan/plan_json.h"
#include "common/rpc/command_codec.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/jobs/plan_anew.h"
#include "coordinator/service/run/prepare_run.h"

namespace harmony::service {

absl::Status Coordinator::SetUp(const HostLimits& limits, Prepared* prepared) {
  store::JobRecord& record = prepared->record;
  HARMONY_ASSIGN_OR_RETURN(prepared->setup, SetupOf(record, machine_));
  if (!PlannedFor(prepared->setup.plan, machine_)) {
    const absl::Status planned = PlanAnew(machine_, limits, &record);
    prepared->fits = planned.ok();
    HARMONY_RETURN_IF_ERROR(planned);
    HARMONY_ASSIGN_OR_RETURN(prepared->setup, SetupOf(record, machine_));
  }
  return PrepareRun(record, machine_, segment_, &prepared->setup);
}

void Coordinator::TakePlan(store::JobRecord& record, const store::JobRecord& planned) {
  if (record.plan == planned.plan) return;
  record.plan = planned.plan;
  record.plan_text = planned.plan_text;
  record.profile = planned.profile;
  record.replan = planned.replan;
  registry_.Report(record,
                   "the devices are others than before: planned anew, the result stays the same");
  registry_.Save(record);
}

void Coordinator::OnDrift() {
  store::JobRecord& record = *current();
  const RunSetup& setup = run_->setup();
  if (setup.spec.replan == job::ReplanMode::kOff || replanner_.busy() || terminated_ ||
      record.stop != store::StopIntent::kNone) {
    return;
  }
  ReplanRequest request{setup,    setup.profile, run_->MeasuredCalibration(),
                        machine_, Limits(),      run_->steps().MedianSecondsPerStep(kStepsToJudge)};
  // What the plan in force takes of the host is given back before the next one takes its part.
  request.limits.available =
      ipc::AvailableHostMemory() + plan::ArenaLayout(setup.model, setup.plan).end();
  registry_.Report(record, absl::StrCat("replan: searching by measured times: ",
                                        DescribeCalibration(request.calibration)));
  dispatch::Calibration calibration = request.calibration;
  replanner_.Search(std::move(request), [this, run = runs_, calibration = std::move(calibration)](
                                            const ReplanAnswer& answer) {
    if (run == runs_ && phase_ == Phase::kRunning && !run_->ended()) {
      OnReplanned(calibration, answer);
    }
  });
}

void Coordinator::OnReplanned(const dispatch::Calibration& calibration,
                              const ReplanAnswer& answer) {
  store::JobRecord& record = *current();
  const RunSetup& setup = run_->setup();
  std::optional<Suggestion> suggestion;
  if (answer.then) suggestion = Suggestion{answer.then->step_seconds, answer.now->step_seconds};
  run_->OnSearched(answer.now, calibration, suggestion);
  KeepReplanState();
  if (!answer.status.ok()) {
    return registry_.Report(record,
                            absl::StrCat("replan: found nothing: ", answer.status.message()));
  }
  if (!answer.then) {
    return registry_.Report(
        record, absl::StrFormat("replan: no plan is %.0f%% faster than the one in force, which is "
                                "now predicted to take %.3g s a step",
                                100 * kWorthAWord, answer.now->step_seconds));
  }
  const std::string found = absl::StrFormat(
      "%.3g s a step predicted instead of %.3g s (%.0f%% less): %s", answer.then->step_seconds,
      answer.now->step_seconds, 100 * answer.gain(), OutlineOf(answer.plan));
  const int64_t left = record.max_steps - run_->completed_steps();
  if (setup.spec.replan == job::ReplanMode::kAuto && record.stop == store::StopIntent::kNone &&
      !terminated_ && PaysOff(setup.model, answer, left)) {
    registry_.Report(record, "replan: changing the plan after the step in flight: " + found);
    next_plan_ = answer;
    record.stop = store::StopIntent::kReplan;
    return run_->FinishStep();
  }
  const std::string file = record.output_dir + "/suggested-plan.json";
  const absl::Status written = io::WriteFileAtomically(file, plan::PlanFileText(answer.plan));
  registry_.Report(
      record, absl::StrCat("replan: a faster plan is known: ", found, "; ",
                           written.ok() ? "for --plan: " + file : std::string(written.message())));
}

void Coordinator::KeepReplanState() {
  current()->replan = ReplanStateToText(run_->steps().replan());
  registry_.Save(*current());
}

// The checkpoint has been written. Whoever takes the job up from here on, this process or a
// successor, goes on from it: with the old plan until the record is saved, with the new one after.
void Coordinator::ChangePlan(store::JobRecord& record) {
  const ReplanAnswer next = *std::exchange(next_plan_, std::nullopt);
  ReplanState state = run_->steps().replan();
  CountChange(record.completed_steps, next.measured_seconds, &state);
  record.replan = ReplanStateToText(state);
  record.plan = rpc::SerializePlan(next.plan);
  record.plan_text = next.plan_text;
  record.stop = store::StopIntent::kNone;
  registry_.Report(record, absl::StrCat("replan: going on with the other plan after step ",
                                        record.completed_steps));
  goes_on_ = record.number;
  SetState(record, store::JobState::kQueued);
}

}  // namespace harmony::service
