#include "coordinator/service/run/metrics_log.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::service {
namespace {

constexpr Nanos kSyncInterval = Seconds(2);

}  // namespace

void MetricsLog::Append(int64_t step, std::string line, Nanos now) {
  lines_.emplace_back(step, std::move(line));
  if (!tries_.failing()) Took(WriteAll(), now);
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
