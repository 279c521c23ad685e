#pragma once

// output_dir/run.json: which run the folder holds, and what fixed its result. The coordinator
// writes it before the job is queued; the host worker holds the data against it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/training_data.h"
#include "common/job/resolved_keys.h"

namespace harmony::io {

// The run went on as another job than it had begun as, where that has the same bits.
struct RunExtension {
  int64_t after_step = 0;
  std::vector<std::string> changes;  // "max_steps (100 -> 200)"

  bool operator==(const RunExtension&) const = default;
};

// What the steps behind `after_step` were computed on: of each kind of device, what the bits of its
// results depend on besides the job.
struct RunHardware {
  int64_t after_step = 0;
  std::vector<std::string> devices;

  bool operator==(const RunHardware&) const = default;
};

struct RunFile {
  std::string result_keys;  // ResultKeysText of the job
  job::ResolvedKeys resolved;
  bool finished = false;
  std::optional<DataFingerprint> data = {};  // none: written by a version that did not know it
  std::vector<RunExtension> extensions = {};
  // Of the job as last submitted; they fix no result.
  std::optional<int64_t> save_steps = {}, logging_steps = {};
  std::vector<RunHardware> computed_on = {};  // fixes the last bits of results
};

// The steps behind `after_step` are computed by these devices now, whatever it was before. Returns
// what the step before was computed on, where these are others; else nothing.
std::vector<std::string> SetHardware(int64_t after_step, const std::vector<std::string>& devices,
                                     std::vector<RunHardware>& computed_on);

// NotFound when there is none; DataLoss when it cannot be read.
absl::StatusOr<RunFile> ReadRunFile(const std::string& output_dir);
absl::Status WriteRunFile(const std::string& output_dir, const RunFile& run);

// The job's training data, as the run in its output_dir began with them (by what fingerprints
// cover): tokens that were appended to its file since are none of them. Errors of OpenTrainingData
// and CheckDataUnchanged. Not held against anything where run.json is gone or says nothing of them.
absl::StatusOr<std::unique_ptr<TrainingData>> OpenDataOfRun(const job::JobSpec& job,
                                                            const model::ModelSpec& model);

// FailedPrecondition when the data (`where`: TrainingData::where) are not what the run began with:
// says how they differ, and what to do. OK when run.json does not say what that was.
absl::Status CheckDataUnchanged(const std::optional<DataFingerprint>& begun_with,
                                const std::string& where, const DataFingerprint& now);

// Whether a run that has done `steps` steps may go on with a file of tokens that was appended to:
// it begins with what the run began with, and those steps have read no further, so that they would
// have been the same. FailedPrecondition says what stands against it.
absl::Status CheckDataAppended(const job::JobSpec& job, const DataFingerprint& begun_with,
                               int64_t steps);

}  // namespace harmony::io
