#pragma once

// The rules of output_dir (DESIGN section 10): run.json says which run it holds; the same run
// continues from its newest valid checkpoint or is finished, another run is refused.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"

namespace harmony {

// output_dir/run.json.
struct RunFile {
  std::string result_keys;       // ResultKeysText of the job
  int64_t micro_batch_size = 0;  // as resolved
  int virtual_replicas = 1;      // as resolved
  bool finished = false;
};
// NotFound when there is none; DataLoss when it cannot be read.
absl::StatusOr<RunFile> ReadRunFile(const std::string& output_dir);
absl::Status WriteRunFile(const std::string& output_dir, const RunFile& run);

// What is found there before a job is queued. Reads only.
struct OutputDirState {
  bool same_run = false;         // run.json is of this run
  bool finished = false;         // ... and it is complete
  bool must_move = false;        // holds another run, and --overwrite was given
  int64_t micro_batch_size = 0;  // of that run; 0: none
  int virtual_replicas = 0;      // of that run; 0: none
};
// FailedPrecondition names the keys that differ when it holds another run and `overwrite` is false.
absl::StatusOr<OutputDirState> InspectOutputDir(const std::string& output_dir,
                                                const std::string& result_keys, bool overwrite);

// Makes the folder ready for the run: moves an old one aside when `state.must_move`, makes it,
// writes run.json. The new name of what was moved goes to `*moved_to`.
absl::Status PrepareOutputDir(const std::string& output_dir, const OutputDirState& state,
                              const RunFile& run, std::string* moved_to);

// Where a job starts from.
struct StartPoint {
  std::string checkpoint;  // absolute directory; empty: from init
  int64_t first_step = 0;
  std::vector<std::string> notes;  // for the log: what was passed over, and why
};
// By the job's resume_checkpoint. Reads and checks whole checkpoints. DataLoss or
// FailedPrecondition when the one that the job names is not usable.
absl::StatusOr<StartPoint> ChooseStartPoint(const JobSpec& job, const std::string& result_keys);

}  // namespace harmony
