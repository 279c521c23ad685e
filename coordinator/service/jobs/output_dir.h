#pragma once

// The rules of output_dir: run.json says which run it holds; the same run
// continues from its newest valid checkpoint or is finished, another run is refused.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/run_file.h"
#include "common/ipc/fd_passing.h"
#include "common/job/job_spec.h"

namespace harmony::service {

// What is found there before a job is queued. Reads only.
struct OutputDirState {
  bool same_run = false;                      // run.json is of this run
  bool finished = false;                      // ... and it is complete
  bool must_move = false;                     // holds another run, and --overwrite was given
  std::string found_keys;                     // of the run.json there; empty: there is none
  std::optional<job::ResolvedKeys> resolved;  // of that run, when it goes on
  std::optional<io::DataFingerprint> data;    // likewise, when it says
  // Likewise: as what it has gone on since it began; `extended`: the last of them is by this job.
  std::vector<io::RunExtension> extensions;
  bool extended = false;
  std::vector<io::RunHardware> computed_on;  // likewise
};
// Of the job's output_dir. FailedPrecondition names the keys that differ when it holds another run,
// which has trained something and cannot go on as this one (common/job/goes_on.h), and `overwrite`
// is false.
absl::StatusOr<OutputDirState> InspectOutputDir(const job::JobSpec& job,
                                                const std::string& result_keys, bool overwrite);

// The right to write into an output directory: an advisory lock on the directory itself, which ends
// with its holder, whatever becomes of that.
class OutputDirLock {
 public:
  // FailedPrecondition when somebody else holds it. REQUIRES: the directory exists.
  static absl::StatusOr<OutputDirLock> Acquire(const std::string& output_dir);

 private:
  explicit OutputDirLock(ipc::UniqueFd fd) : fd_(std::move(fd)) {}
  ipc::UniqueFd fd_;
};

// FailedPrecondition when moving the folder aside would take away what the job reads: its data, its
// model or its checkpoint.
absl::Status CheckMayMove(const job::JobSpec& job);

// Makes the folder ready for the run, if that is still what `state` says (else
// FailedPrecondition): moves an old one aside when `state.must_move`, makes it,
// writes run.json. Nothing is touched while another coordinator writes there. The new name of what
// was moved goes to `*moved_to`.
absl::StatusOr<OutputDirLock> PrepareOutputDir(const std::string& output_dir,
                                               const OutputDirState& state, const io::RunFile& run,
                                               std::string* moved_to);

// Of a job that was queued before, by a coordinator that is gone. InvalidArgument when another run
// has taken the folder since, which it may where nothing had been trained.
absl::StatusOr<OutputDirLock> RetakeOutputDir(const std::string& output_dir,
                                              const std::string& result_keys);

// Where a job starts from.
struct StartPoint {
  std::string checkpoint;  // absolute directory; empty: from init
  int64_t first_step = 0;
  std::vector<std::string> notes;  // for the log: what was passed over, and why
  bool goes_back = false;          // to a checkpoint of its own output_dir, as the job says
};
// By the job's resume_from_checkpoint: the newest checkpoint of its own that is whole, and not
// before the one that the job names; else that one, or the beginning. `begun`: it has trained since
// it was submitted, which counts, whatever it was told to start from. Reads and checks whole
// checkpoints. DataLoss or FailedPrecondition when the one that the job names is not usable.
absl::StatusOr<StartPoint> ChooseStartPoint(const job::JobSpec& job, const std::string& result_keys,
                                            bool begun = false);

// Where a job goes back, the checkpoints that were written after that one are of steps that it does
// again, perhaps to other bits: on other hardware, say. So that none is taken for one of the new
// steps, each is moved to a name of its own beside it, which `notes` say.
absl::Status SetLaterCheckpointsAside(const std::string& output_dir, StartPoint* start);

// Rather than `auto` or `none`.
bool NamesCheckpoint(const job::JobSpec& job);

// Where the run begins, for what fixes its result (JobSpec::begun_from): the checkpoint that the
// job names, where that is no point of this very run; for `auto` and `none` where the run began
// that has checkpoints in output_dir. InvalidArgument when the named one cannot be read.
// `same_data`: whether the job's data are those that a run read up to that step; not asked for
// checkpoints that do not say.
absl::StatusOr<std::string> OriginOf(
    const job::JobSpec& job,
    absl::FunctionRef<bool(const io::DataFingerprint& begun_with, int64_t steps)> same_data);

}  // namespace harmony::service
