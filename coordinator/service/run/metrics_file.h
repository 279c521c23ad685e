#pragma once

// output_dir/metrics.jsonl: one JSON object a logged step. A step never appears twice and is never
// lost: opening it cuts a torn last line and what lies beyond the step the job continues from.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ipc/fd_passing.h"

namespace harmony::service {

class MetricsFile {
 public:
  // Makes the file when it is missing, and locks it: FailedPrecondition when another run has it
  // open (for more than a moment: one that was killed may be ending). Keeps lines of steps up to
  // `last_step_kept` (counted from 1). DataLoss when lines are damaged, and none of those is whole.
  static absl::StatusOr<MetricsFile> Open(const std::string& path, int64_t last_step_kept);

  // The last step there is a line of; 0: none.
  int64_t last_step() const { return last_step_; }
  // The last step whose line was cut at opening; 0: none was.
  int64_t last_step_cut() const { return last_step_cut_; }

  // Appends one line (without its end) of a step above last_step(), in one write.
  absl::Status Append(int64_t step, absl::string_view json_line);
  // Makes the lines durable.
  absl::Status Sync();

 private:
  MetricsFile(ipc::UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  ipc::UniqueFd fd_;
  std::string path_;
  int64_t size_ = 0;
  int64_t last_step_ = 0;
  int64_t last_step_cut_ = 0;
};

}  // namespace harmony::service
