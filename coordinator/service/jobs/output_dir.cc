#include "coordinator/service/jobs/output_dir.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/file.h"
#include "common/job/goes_on.h"
#include "common/job/job_file.h"

namespace harmony::service {
namespace {

namespace fs = std::filesystem;

constexpr char kOrigin[] = "resume_from_checkpoint (";  // how the difference begins, DifferingKeys

// Something that only training leaves: a line of progress, a checkpoint, or the end.
bool HasTracesOfARun(const std::string& output_dir) {
  std::error_code error;  // what cannot be looked at is there
  const auto is_there = [&](const char* name) {
    return fs::exists(output_dir + name, error) || error;
  };
  const bool has_lines =
      is_there("/metrics.jsonl") && fs::file_size(output_dir + "/metrics.jsonl", error) > 0;
  return has_lines || is_there("/final") || !io::ListCheckpoints(output_dir).empty();
}

std::string FreeNameBeside(const std::string& path) {
  for (int i = 1;; ++i) {
    const std::string name = absl::StrCat(path, ".old-", i);
    std::error_code error;  // whoever moves something there is told
    if (!fs::exists(fs::symlink_status(name, error))) return name;
  }
}

// To a free name beside it, which is returned.
absl::StatusOr<std::string> MoveAside(const std::string& path) {
  std::string aside = FreeNameBeside(path);
  std::error_code error;
  fs::rename(path, aside, error);
  if (error) return io::ErrnoStatus(error.value(), "move aside", path);
  return aside;
}

absl::Status NothingToGoOnFrom(const job::JobSpec& job) {
  return absl::InvalidArgumentError(absl::StrCat(
      "output_dir ", job.output_dir, " has no whole checkpoint, and its run did not begin with ",
      "its init, but with another run's checkpoint (", job.begun_from,
      "): give that as resume_from_checkpoint"));
}

bool IsInside(const std::string& path, const fs::path& folder) {
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return false;
  const fs::path below =
      fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !below.empty() && *below.begin() != "..";
}

absl::StatusOr<StartPoint> StartAtNamed(const std::string& path, const std::string& result_keys) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return io::ErrnoStatus(error ? error.value() : ENOENT, "resume_from_checkpoint", path);
  }
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointManifest manifest, io::VerifyNamedCheckpoint(path));
  HARMONY_RETURN_IF_ERROR_CTX(job::CheckSumOrder(manifest.resolved), path);
  StartPoint start{path, manifest.step, {}};
  std::vector<std::string> keys = job::DifferingKeys(manifest.result_keys, result_keys);
  std::erase_if(keys, [](const std::string& key) {
    return absl::StartsWith(key, kOrigin);  // this very one
  });
  if (!keys.empty()) {
    start.notes.push_back(
        absl::StrCat("resume_from_checkpoint: ", path,
                     " was written by a run with other keys: ", absl::StrJoin(keys, ", ")));
  }
  return start;
}

// What the job changes in the run that it goes on with.
io::RunExtension ExtensionBy(const job::JobSpec& job, const std::string& result_keys,
                             const io::RunFile& run, int64_t steps) {
  io::RunExtension extension{steps, job::DifferingKeys(run.result_keys, result_keys)};
  const auto compare = [&](const char* key, std::optional<int64_t> before, int64_t now) {
    if (!before || *before == now) return;
    extension.changes.push_back(absl::StrCat(key, " (", *before, " -> ", now, ")"));
  };
  compare("logging_steps", run.logging_steps, job.logging_steps);
  compare("save_steps", run.save_steps, job.save_steps);
  return extension;
}

// A disk that does not answer, or a file that may not be read: nothing is damaged, and no step is
// to be done again for it.
bool IsNotDamage(const absl::Status& status) { return !status.ok() && !absl::IsDataLoss(status); }

// Of a run that goes on as this job, which has other keys perhaps.
OutputDirState GoOn(const job::JobSpec& job, const std::string& result_keys, const io::RunFile& run,
                    int64_t steps) {
  OutputDirState state;
  state.same_run = true;
  state.found_keys = run.result_keys;
  state.resolved = run.resolved;
  state.data = run.data;
  state.extensions = run.extensions;
  state.computed_on = run.computed_on;
  const bool same = job::DifferingKeys(run.result_keys, result_keys).empty();
  std::error_code error;
  state.finished = same && run.finished && fs::exists(job.output_dir + "/final", error);
  io::RunExtension extension = ExtensionBy(job, result_keys, run, steps);
  state.extended = !state.finished && !extension.changes.empty();
  if (state.extended) state.extensions.push_back(std::move(extension));
  return state;
}

}  // namespace

absl::StatusOr<OutputDirState> InspectOutputDir(const job::JobSpec& job,
                                                const std::string& result_keys, bool overwrite) {
  const std::string& output_dir = job.output_dir;
  OutputDirState state;
  std::error_code error;
  if (!fs::exists(output_dir, error)) return state;
  if (!fs::is_directory(output_dir, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("output_dir ", output_dir, " is there and is no directory"));
  }
  const absl::StatusOr<io::RunFile> run = io::ReadRunFile(output_dir);
  std::string why;
  if (run.ok()) {
    state.found_keys = run->result_keys;
    const std::vector<std::string> keys = job::DifferingKeys(run->result_keys, result_keys);
    const std::vector<int64_t> checkpoints = io::ListCheckpoints(output_dir);
    const int64_t steps = checkpoints.empty() ? 0 : checkpoints.front();
    absl::Status goes_on = job::CheckGoesOn(run->result_keys, job, result_keys, steps);
    if (goes_on.ok() && !keys.empty() && job.resume_from_checkpoint != "auto") {
      goes_on = absl::FailedPreconditionError(
          absl::StrCat("these keys differ: ", absl::StrJoin(keys, ", "),
                       "; it would go on from its own newest checkpoint, without ",
                       "resume_from_checkpoint: ", job.resume_from_checkpoint));
    }
    if (goes_on.ok() && !overwrite) {
      state = GoOn(job, result_keys, *run, steps);
      if (state.finished) return state;
      if (checkpoints.empty() && !job.begun_from.empty() && job.resume_from_checkpoint == "auto") {
        return NothingToGoOnFrom(job);
      }
      HARMONY_RETURN_IF_ERROR_CTX(job::CheckSumOrder(run->resolved),
                                  absl::StrCat("output_dir ", output_dir));
      return state;
    }
    if (keys.empty()) {
      state.same_run = state.must_move = true;
      return state;
    }
    // One that never got anywhere: its job file was mended, say.
    if (!HasTracesOfARun(output_dir)) return state;
    why = absl::StrCat("holds another run; ", goes_on.message());
    if (keys.size() == 1 && absl::StartsWith(keys[0], kOrigin)) {
      absl::StrAppend(&why, "; to go on with that, leave resume_from_checkpoint out");
    }
  } else if (!absl::IsNotFound(run.status())) {
    why = absl::StrCat("holds a run whose description cannot be read: ", run.status().message());
  } else if (HasTracesOfARun(output_dir)) {
    why = "holds results of a run, but no run.json";
  } else {
    return state;
  }
  if (!overwrite) {
    return absl::FailedPreconditionError(absl::StrCat(
        "output_dir ", output_dir, " ", why,
        ". Choose another output_dir, or give --overwrite to move the old directory aside"));
  }
  state.must_move = true;
  return state;
}

absl::StatusOr<OutputDirLock> OutputDirLock::Acquire(const std::string& output_dir) {
  ipc::UniqueFd fd(open(output_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return io::ErrnoStatus(errno, "open", output_dir);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return OutputDirLock(std::move(fd));
  if (errno != EWOULDBLOCK) return io::ErrnoStatus(errno, "lock", output_dir);
  return absl::FailedPreconditionError(
      absl::StrCat("output_dir ", output_dir, ": another coordinator is training into it: stop ",
                   "that run first, or choose another output_dir"));
}

absl::Status CheckMayMove(const job::JobSpec& job) {
  std::vector<std::pair<std::string, std::string>> read = {
      {"data.path", job.data_path},
      {"model_name_or_path", job.model_name_or_path},
      {"resume_from_checkpoint", job.resume_from_checkpoint}};
  for (const auto& [name, path] : job.data_inputs) {
    read.emplace_back(absl::StrCat("data.inputs.", name), path);
  }
  for (const auto& [key, path] : read) {
    if (!IsInside(path, job.output_dir)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(key, ": ", path, " lies in output_dir ", job.output_dir,
                     ", which --overwrite would move aside: choose another output_dir"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OutputDirLock> PrepareOutputDir(const std::string& output_dir,
                                               const OutputDirState& state, const io::RunFile& run,
                                               std::string* moved_to) {
  std::error_code error;
  if (fs::exists(output_dir, error)) {
    // Held while the folder is moved, then given up with the old folder.
    HARMONY_ASSIGN_OR_RETURN(OutputDirLock lock, OutputDirLock::Acquire(output_dir));
    if (!state.must_move) {
      // To read the data and to plan takes its time, in which another run may have come and gone.
      const absl::StatusOr<io::RunFile> there = io::ReadRunFile(output_dir);
      if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
      if ((there.ok() ? there->result_keys : "") != state.found_keys) {
        return absl::FailedPreconditionError(
            absl::StrCat("output_dir ", output_dir,
                         " has become that of another run while the job "
                         "was planned: submit it again, to see what is there"));
      }
      HARMONY_RETURN_IF_ERROR(io::WriteRunFile(output_dir, run));
      return lock;
    }
    absl::StatusOr<std::string> aside = MoveAside(output_dir);
    HARMONY_RETURN_IF_ERROR_CTX(aside.status(), "output_dir");
    *moved_to = *std::move(aside);
  }
  fs::create_directories(output_dir, error);
  if (error) return WithContext(io::ErrnoStatus(error.value(), "make", output_dir), "output_dir");
  HARMONY_ASSIGN_OR_RETURN(OutputDirLock lock, OutputDirLock::Acquire(output_dir));
  HARMONY_RETURN_IF_ERROR(io::WriteRunFile(output_dir, run));
  return lock;
}

absl::StatusOr<OutputDirLock> RetakeOutputDir(const std::string& output_dir,
                                              const std::string& result_keys) {
  HARMONY_ASSIGN_OR_RETURN(OutputDirLock lock, OutputDirLock::Acquire(output_dir));
  const absl::StatusOr<io::RunFile> run = io::ReadRunFile(output_dir);
  if (!run.ok()) return lock;  // removed, say: it is written anew at the end
  const std::vector<std::string> keys = job::DifferingKeys(run->result_keys, result_keys);
  if (keys.empty()) return lock;
  return absl::InvalidArgumentError(  // waiting would not help
      absl::StrCat("output_dir ", output_dir, " holds another run by now; these keys differ: ",
                   absl::StrJoin(keys, ", "), ". Submit the job again with another output_dir"));
}

absl::StatusOr<StartPoint> ChooseStartPoint(const job::JobSpec& job, const std::string& result_keys,
                                            bool begun) {
  const std::string& named = job.resume_from_checkpoint;
  StartPoint start;
  if (named == "none" && !begun) return start;
  const bool names = NamesCheckpoint(job);
  // One of its own is meant, whatever newer ones there are.
  if (names && !begun && IsInside(named, job.output_dir)) {
    HARMONY_ASSIGN_OR_RETURN(start, StartAtNamed(named, result_keys));
    start.goes_back = true;
    return start;
  }
  int64_t least = 0;
  if (names) {
    const absl::StatusOr<io::CheckpointManifest> manifest = io::ReadManifest(named);
    if (IsNotDamage(manifest.status())) return manifest.status();
    if (manifest.ok()) least = manifest->step;
  }
  HARMONY_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, io::ReadCheckpoints(job.output_dir));
  for (int64_t step : steps) {
    if (step < least) break;
    const std::string path = io::JoinPath(job.output_dir, io::CheckpointName(step));
    const absl::StatusOr<io::CheckpointManifest> manifest = io::VerifyCheckpoint(path);
    if (IsNotDamage(manifest.status())) {
      return absl::Status(manifest.status().code(),
                          absl::StrCat(manifest.status().message(), "; to go on from an older ",
                                       "checkpoint, move ", path, " away"));
    }
    if (!manifest.ok()) {
      start.notes.push_back(
          absl::StrCat("passing over a damaged checkpoint: ", manifest.status().message()));
    } else if (!job::CheckGoesOn(manifest->result_keys, job, result_keys, step).ok()) {
      start.notes.push_back(absl::StrCat("passing over ", path, ": it is of another run"));
    } else {
      HARMONY_RETURN_IF_ERROR_CTX(job::CheckSumOrder(manifest->resolved), path);
      start.checkpoint = path;
      start.first_step = step;
      return start;
    }
  }
  if (!names && !job.begun_from.empty()) return NothingToGoOnFrom(job);
  if (!names) return start;
  HARMONY_ASSIGN_OR_RETURN(StartPoint at_named, StartAtNamed(named, result_keys));
  at_named.notes.insert(at_named.notes.begin(), start.notes.begin(), start.notes.end());
  return at_named;
}

absl::Status SetLaterCheckpointsAside(const std::string& output_dir, StartPoint* start) {
  if (!start->goes_back) return absl::OkStatus();
  HARMONY_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, io::ReadCheckpoints(output_dir));
  for (int64_t step : steps) {  // the newest first
    if (step <= start->first_step) break;
    const std::string path = io::JoinPath(output_dir, io::CheckpointName(step));
    HARMONY_ASSIGN_OR_RETURN(const std::string aside, MoveAside(path));
    start->notes.push_back(
        absl::StrCat(path, " is of steps that are done again: it is now ", aside));
  }
  return absl::OkStatus();
}

bool NamesCheckpoint(const job::JobSpec& job) {
  return job.resume_from_checkpoint != "auto" && job.resume_from_checkpoint != "none";
}

absl::StatusOr<std::string> OriginOf(
    const job::JobSpec& job,
    absl::FunctionRef<bool(const io::DataFingerprint& begun_with, int64_t steps)> same_data) {
  const std::string& named = job.resume_from_checkpoint;
  const absl::StatusOr<io::RunFile> run = io::ReadRunFile(job.output_dir);
  if (!NamesCheckpoint(job)) {
    if (!run.ok()) return "";
    // A run without a checkpoint would begin with `init`, and not where it began.
    const bool goes_on =
        named == "none" || run->finished || !io::ListCheckpoints(job.output_dir).empty();
    return goes_on ? job::BegunFrom(run->result_keys) : "";
  }
  const absl::StatusOr<io::CheckpointManifest> manifest = io::ReadManifest(named);
  if (!manifest.ok() && run.ok() && run->finished) {  // of a run that has ended nobody needs it
    return job::BegunFrom(run->result_keys);
  }
  if (IsNotDamage(manifest.status())) {
    return WithContext(manifest.status(), "resume_from_checkpoint");
  }
  if (!manifest.ok()) {
    absl::Status status = io::VerifyNamedCheckpoint(named).status();
    return absl::InvalidArgumentError(absl::StrCat(
        "resume_from_checkpoint: ", status.ok() ? manifest.status().message() : status.message()));
  }
  // What a run with these keys, of the same data, has come to, this one would have come to itself.
  job::JobSpec same = job;
  same.begun_from = job::BegunFrom(manifest->result_keys);
  const std::string keys = job::ResultKeysText(same);
  const auto is_of_this_run = [&](const std::string& result_keys) {
    return job::CheckGoesOn(result_keys, same, keys, manifest->step).ok();
  };
  if (!is_of_this_run(manifest->result_keys)) return io::IdentityOf(*manifest);
  // A run that has begun there knows its data by its run.json.
  if (run.ok() && is_of_this_run(run->result_keys)) return same.begun_from;
  const auto details = io::CheckpointDetailsFromJson(manifest->details_json, named);
  const bool other_data =
      details.ok() && details->data && !same_data(*details->data, manifest->step);
  return other_data ? io::IdentityOf(*manifest) : same.begun_from;
}

}  // namespace harmony::service
