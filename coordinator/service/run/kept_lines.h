#pragma once

// Lines of metrics.jsonl that could not be written yet, where the next coordinator finds them: in a
// file in memory that the launcher owns, as it owns the segment, so that they live as long as what
// was trained. The job database was tried in thought: it often lies on the very disk that is full.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace harmony::service {

// Owner: MetricsLog; loop thread only. Of one job at a time.
class KeptLines {
 public:
  using Line = std::pair<int64_t, std::string>;  // step, text without its end

  // Keeps nothing.
  KeptLines() = default;
  // In the file that the environment names; where it names none, no launcher owns one, and nothing
  // is kept.
  static KeptLines Inherited(std::string job_id);
  explicit KeptLines(int fd, std::string job_id) : fd_(fd), job_id_(std::move(job_id)) {}

  // What a predecessor kept of the job, in order.
  absl::StatusOr<std::vector<Line>> Read() const;
  absl::Status Add(int64_t step, const std::string& line);
  // All have been written, or are another job's.
  absl::Status Clear();

 private:
  int fd_ = -1;  // not ours to close: the next job needs it, too
  std::string job_id_;
};

}  // namespace harmony::service
