#include "coordinator/service/run/metrics_log.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::service {
namespace {

// Lines are written at once, and survive any process; so much of them a power cut may take.
constexpr Nanos kSyncInterval = Seconds(2);

}  // namespace

absl::StatusOr<MetricsLog> MetricsLog::Make(MetricsFile file, KeptLines kept,
                                            int64_t last_step_kept,
                                            std::function<void(const std::string&)> report) {
  HARMONY_ASSIGN_OR_RETURN(const std::vector<KeptLines::Line> lines, kept.Read());
  MetricsLog log(std::move(file), std::move(kept), std::move(report));
  for (const KeptLines::Line& line : lines) {
    if (line.first > log.last_step() && line.first <= last_step_kept) log.lines_.push_back(line);
  }
  if (log.lines_.empty()) HARMONY_RETURN_IF_ERROR(log.kept_.Clear());
  return log;
}

void MetricsLog::Append(int64_t step, std::string line, Nanos now) {
  lines_.emplace_back(step, std::move(line));
  const absl::Status written = tries_.failing() ? absl::OkStatus() : WriteAll();
  if (!lines_.empty()) {
    const absl::Status kept = kept_.Add(step, lines_.back().second);
    if (!kept.ok()) report_(std::string(kept.message()));
  }
  if (!tries_.failing()) Took(written, now);
}

void MetricsLog::OnTick(Nanos now) {
  if (tries_.failing() ? !tries_.Due(now) : now - synced_ <= kSyncInterval) return;
  Finish(now);
}

void MetricsLog::Finish(Nanos now) {
  synced_ = now;
  absl::Status status = WriteAll();
  if (status.ok()) status = file_.Sync();
  Took(status, now);
}

absl::Status MetricsLog::WriteAll() {
  while (!lines_.empty()) {
    const auto& [step, line] = lines_.front();
    HARMONY_RETURN_IF_ERROR(file_.Append(step, line));
    lines_.pop_front();
    if (lines_.empty()) return kept_.Clear();
  }
  return absl::OkStatus();
}

void MetricsLog::Took(const absl::Status& status, Nanos now) {
  if (status.ok()) {
    if (tries_.failing()) report_("metrics.jsonl is complete again");
    return tries_.Succeeded();
  }
  const Nanos pause = tries_.Failed(now);
  report_(absl::StrCat(status.message(), ": ", lines_.size(),
                       " lines are kept in memory; the next try is in ", FormatDuration(pause)));
}

}  // namespace harmony::service
