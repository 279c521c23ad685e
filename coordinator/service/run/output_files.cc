#include "coordinator/service/run/output_files.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/io/run_file.h"
#include "common/plan/plan_json.h"
#include "coordinator/service/run/metrics_line.h"

namespace harmony::service {

absl::Status OutputFiles::WritePlan(const store::JobRecord& record) {
  absl::Status status = io::WriteFileAtomically(record.output_dir + "/plan.json",
                                                plan::PlanFileText(run_->setup().plan));
  if (status.ok()) {
    plan_tries_.Succeeded();
    return status;
  }
  if (!plan_tries_.failing()) {
    registry_->Report(record, absl::StrCat("no plan.json yet: ", status.message()));
  }
  plan_tries_.Failed(clock_->Now());
  return status;
}

void OutputFiles::OnTick(const store::JobRecord& record, Nanos now) {
  if (plan_tries_.Due(now)) WritePlan(record).IgnoreError();
}

void OutputFiles::OnStep(const store::JobRecord& record) {
  if (hardware_noted_) return;
  const std::vector<std::string> devices = members_->ComputesOn();
  absl::StatusOr<io::RunFile> run = io::ReadRunFile(record.output_dir);
  if (!run.ok() || devices.empty()) return;
  const std::vector<io::RunHardware> noted = run->computed_on;
  const std::vector<std::string> before = io::SetHardware(first_step_, devices, run->computed_on);
  const bool changed = run->computed_on != noted;
  if (changed && !io::WriteRunFile(record.output_dir, *run).ok()) return;
  hardware_noted_ = true;
  const std::string now = absl::StrJoin(devices, " and ");
  if (!before.empty()) {
    registry_->Report(record, absl::StrCat("goes on after step ", first_step_, " on ", now,
                                           "; before it ran on ", absl::StrJoin(before, " and "),
                                           ": the last bits of its results may be others than they "
                                           "would have been there"));
  } else if (changed && devices.size() > 1) {
    registry_->Report(record, absl::StrCat("runs on ", now,
                                           ": the last bits of its results depend on which of them "
                                           "computes what, and so on the plan"));
  }
}

absl::Status OutputFiles::WriteSummary(store::JobRecord& record) {
  const RunSummary summary = SummarizeRun(*run_, (clock_->Now() - begun_).seconds());
  record.summary = summary.text;
  record.summary_json = summary.json;
  return io::WriteFileAtomically(record.output_dir + "/summary.json", summary.json);
}

absl::Status OutputFiles::WriteEnd(store::JobRecord& record) {
  if (plan_tries_.failing()) HARMONY_RETURN_IF_ERROR(WritePlan(record));
  HARMONY_RETURN_IF_ERROR(WriteSummary(record));
  absl::StatusOr<io::RunFile> run = io::ReadRunFile(record.output_dir);
  if (absl::IsNotFound(run.status())) {  // removed by somebody: what it said of the data is lost
    const plan::Plan& plan = run_->setup().plan;
    run = io::RunFile{record.result_keys, plan.resolved(), false, {}};
  }
  HARMONY_RETURN_IF_ERROR(run.status());
  run->finished = true;
  return io::WriteRunFile(record.output_dir, *run);
}

void OutputFiles::PutEndOff(const store::JobRecord& record, const absl::Status& status, Nanos now) {
  const Nanos pause = end_tries_.Failed(now);
  registry_->Report(record, absl::StrCat(status.message(), ": all else is written; ",
                                         runner::NextTryText(pause)));
}

}  // namespace harmony::service
