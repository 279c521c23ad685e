#pragma once

// The lines of metrics.jsonl on their way to the disk. One that cannot be written is kept, with all
// that follow, and tried again: training goes on, and no line is lost or out of order.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "coordinator/runner/failure.h"
#include "coordinator/service/run/kept_lines.h"
#include "coordinator/service/run/metrics_file.h"

namespace harmony::service {

// Owner: StepLog; loop thread only.
class MetricsLog {
 public:
  // Goes on with what a predecessor kept, up to `last_step_kept`. `report`: a line for the job's
  // log.
  static absl::StatusOr<MetricsLog> Make(MetricsFile file, KeptLines kept, int64_t last_step_kept,
                                         std::function<void(const std::string&)> report);

  // The last step there is a line of, written or kept; 0: none.
  int64_t last_step() const { return lines_.empty() ? file_.last_step() : lines_.back().first; }

  void Append(int64_t step, std::string line, Nanos now);
  // Tries again what is due, and makes the lines durable now and then.
  void OnTick(Nanos now);
  // Writes what is left and makes it durable, whether it is due or not.
  void Finish(Nanos now);
  // Nothing is left.
  bool complete() const { return !tries_.failing(); }
  // What could not be written is tried again at the next tick.
  void Hurry() { tries_.Hurry(); }

 private:
  MetricsLog(MetricsFile file, KeptLines kept, std::function<void(const std::string&)> report)
      : file_(std::move(file)), kept_(std::move(kept)), report_(std::move(report)) {}
  absl::Status WriteAll();
  void Took(const absl::Status& status, Nanos now);

  MetricsFile file_;
  KeptLines kept_;  // holds all of lines_
  std::function<void(const std::string&)> report_;
  std::deque<KeptLines::Line> lines_;  // not in the file yet
  runner::BackOff tries_;
  Nanos synced_;
};

}  // namespace harmony::service
