#include "coordinator/service/jobs/job_registry.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::service {
namespace {

constexpr Nanos kPauseBetweenTries = Seconds(1);

void LogFailure(const absl::Status& status) {
  if (!status.ok()) spdlog::error("event=store_failed reason=\"{}\"", status.ToString());
}

}  // namespace

absl::StatusOr<JobRegistry> JobRegistry::Open(std::unique_ptr<store::JobStore> store) {
  HARMONY_ASSIGN_OR_RETURN(std::vector<store::JobRecord> records, store->LoadAll());
  JobRegistry registry(std::move(store));
  for (store::JobRecord& record : records) registry.jobs_[record.number] = std::move(record);
  return registry;
}

absl::StatusOr<store::JobRecord*> JobRegistry::Add(store::JobRecord record) {
  HARMONY_RETURN_IF_ERROR(store_->Insert(&record));
  store::JobRecord& added = jobs_[record.number];
  added = std::move(record);
  return &added;
}

absl::StatusOr<store::JobRecord*> JobRegistry::Find(absl::string_view id) {
  if (id.empty() && !jobs_.empty()) return &jobs_.rbegin()->second;
  absl::string_view number = id;
  absl::ConsumePrefix(&number, "job-");
  int64_t value = 0;
  if (absl::SimpleAtoi(number, &value)) {
    const auto found = jobs_.find(value);
    if (found != jobs_.end()) return &found->second;
  }
  if (jobs_.empty()) return absl::NotFoundError(absl::StrCat("no job '", id, "': there are none"));
  return absl::NotFoundError(absl::StrCat("no job '", id, "'; there are ",
                                          jobs_.begin()->second.id(), " to ",
                                          jobs_.rbegin()->second.id()));
}

absl::StatusOr<std::vector<std::string>> JobRegistry::Prune(
    const std::string& ended_before, const std::function<bool(int64_t number)>& in_use) {
  std::vector<int64_t> numbers;
  std::vector<std::string> ids;
  for (const auto& [number, record] : jobs_) {
    if (!store::IsEnded(record.state) || in_use(number)) continue;
    if (!ended_before.empty() && record.ended_at >= ended_before) continue;
    numbers.push_back(number);
    ids.push_back(record.id());
  }
  HARMONY_RETURN_IF_ERROR(store_->Remove(numbers));
  for (const int64_t number : numbers) {
    jobs_.erase(number);
    messages_.erase(number);
  }
  return ids;
}

void JobRegistry::Save(const store::JobRecord& record) {
  const absl::Status saved = store_->Save(record);
  LogFailure(saved);
  if (saved.ok()) {
    unsaved_.erase(record.number);
  } else {
    unsaved_.insert(record.number);
  }
}

void JobRegistry::SaveUnsaved(Nanos now) {
  if (unsaved_.empty() || now < next_try_) return;
  next_try_ = now + kPauseBetweenTries;
  for (const int64_t number : std::set(unsaved_)) {
    const auto record = jobs_.find(number);
    if (record == jobs_.end()) {
      unsaved_.erase(number);
    } else {
      Save(record->second);
    }
  }
}

void JobRegistry::SaveProgress(const store::JobRecord& record) {
  LogFailure(store_->SaveProgress(record.number, record.completed_steps, record.last_loss));
}

void JobRegistry::Report(const store::JobRecord& record, const std::string& text) {
  spdlog::info("job={} message=\"{}\"", record.id(), text);
  messages_[record.number].push_back(text);
  LogFailure(store_->AppendLog(record.number, {UtcTimeStamp(), text}));
}

absl::StatusOr<std::vector<store::JobLogLine>> JobRegistry::ReadLog(
    const store::JobRecord& record) {
  return store_->ReadLog(record.number);
}

const std::vector<std::string>& JobRegistry::Messages(const store::JobRecord& record) {
  return messages_[record.number];
}

void FillJob(const store::JobRecord& record, v1::Job* job) {
  job->set_job_id(record.id());
  job->set_state(static_cast<v1::JobState>(record.state));
  job->set_job_yaml(record.yaml);
  job->set_output_dir(record.output_dir);
  job->set_completed_steps(record.completed_steps);
  job->set_max_steps(record.max_steps);
  job->set_last_loss(record.last_loss);
  job->set_error(record.error);
  job->set_error_code(record.error_code);
  job->set_submitted_at(record.submitted_at);
  job->set_started_at(record.started_at);
  job->set_ended_at(record.ended_at);
  job->set_plan_text(record.plan_text);
  job->set_summary(record.summary);
  job->set_summary_json(record.summary_json);
}

}  // namespace harmony::service
