#include "coordinator/service/replan/plan_changes.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/io/atomic_file.h"
#include "common/ipc/host_memory.h"
#include "common/plan/arena_layout.h"
#include "common/plan/plan_json.h"
#include "common/rpc/command_codec.h"

namespace harmony::service {

void PlanChanges::Begin(JobRun* run, store::JobRecord* record) {
  run_ = run;
  record_ = record;
  ++runs_;
  if (run->setup().spec.replan != job::ReplanMode::kOff && !run->steps().forecast()) {
    registry_->Report(
        *record,
        "replan: has nothing to go by: steps are predicted with a profile (--profile) or "
        "on devices with speeds");
  }
}

void PlanChanges::OnDrift() {
  const RunSetup& setup = run_->setup();
  if (setup.spec.replan == job::ReplanMode::kOff || replanner_.busy() || !may_change_()) return;
  ReplanRequest request{
      setup,     setup.profile, run_->MeasuredScales(),
      *machine_, limits_(),     run_->steps().MedianSecondsPerStep(kStepsToJudge)};
  // What the plan in force takes of the host is given back before the next one takes its part.
  request.limits.available =
      ipc::AvailableHostMemory() + plan::ArenaLayout(setup.model, setup.plan).end();
  registry_->Report(*record_, absl::StrCat("replan: searching by measured times: ",
                                           DescribeScales(request.scales)));
  dispatch::CostScales scales = request.scales;
  replanner_.Search(std::move(request),
                    [this, run = runs_, scales = std::move(scales)](const ReplanAnswer& answer) {
                      if (run == runs_ && run_ != nullptr && !run_->ended())
                        OnSearched(scales, answer);
                    });
}

void PlanChanges::OnSearched(const dispatch::CostScales& scales, const ReplanAnswer& answer) {
  const RunSetup& setup = run_->setup();
  std::optional<Suggestion> suggestion;
  if (answer.then) suggestion = Suggestion{answer.then->step_seconds, answer.now->step_seconds};
  run_->OnSearched(answer.now, scales, suggestion);
  KeepState();
  if (!answer.status.ok()) {
    return registry_->Report(*record_,
                             absl::StrCat("replan: found nothing: ", answer.status.message()));
  }
  if (!answer.then) {
    return registry_->Report(
        *record_,
        absl::StrFormat("replan: no plan is %.0f%% faster than the one in force, which is "
                        "now predicted to take %.3g s a step",
                        100 * kWorthAWord, answer.now->step_seconds));
  }
  const std::string found = absl::StrFormat(
      "%.3g s a step predicted instead of %.3g s (%.0f%% less): %s", answer.then->step_seconds,
      answer.now->step_seconds, 100 * answer.gain(), OutlineOf(answer.plan));
  const int64_t left = record_->max_steps - run_->completed_steps();
  if (setup.spec.replan == job::ReplanMode::kAuto && may_change_() &&
      PaysOff(setup.model, answer, left)) {
    registry_->Report(*record_, "replan: changing the plan after the step in flight: " + found);
    found_ = answer;
    record_->stop = store::StopIntent::kReplan;
    return run_->FinishStep();
  }
  const std::string file = record_->output_dir + "/suggested-plan.json";
  const absl::Status written = io::WriteFileAtomically(file, plan::PlanFileText(answer.plan));
  registry_->Report(*record_, absl::StrCat("replan: a faster plan is known: ", found, "; ",
                                           written.ok() ? "for --plan: " + file
                                                        : std::string(written.message())));
}

void PlanChanges::KeepState() {
  record_->replan = ReplanStateToText(run_->steps().replan());
  registry_->Save(*record_);
}

void PlanChanges::TakeFound() {
  const ReplanAnswer next = *std::exchange(found_, std::nullopt);
  ReplanState state = run_->steps().replan();
  CountChange(record_->completed_steps, next.measured_seconds, &state);
  record_->replan = ReplanStateToText(state);
  record_->plan = rpc::SerializePlan(next.plan);
  record_->plan_text = next.plan_text;
  record_->stop = store::StopIntent::kNone;
  registry_->Report(*record_, absl::StrCat("replan: going on with the other plan after step ",
                                           record_->completed_steps));
}

}  // namespace harmony::service
