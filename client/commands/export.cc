#include "client/commands/export.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/stored_jobs.h"
#include "client/launcher/stop_signals.h"
#include "common/base/status.h"
#include "common/io/checkpoint_export.h"
#include "common/io/checkpoint_manifest.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> stop{false};  // the writer looks every few megabytes
std::atomic<int> stopped_by{0};

void OnSignal(int number) {
  stopped_by = number;
  stop = true;
}

// What the caller had ignored stays ignored, as nohup and shells without job control expect.
void StopOn(int number) {
  struct sigaction before = {};
  sigaction(number, nullptr, &before);
  if (before.sa_handler != SIG_IGN) signal(number, OnSignal);
}

// Where it may be written. A directory that holds something is left alone: the writer would replace
// it whole.
absl::Status CheckOutput(const std::string& output) {
  std::error_code error;
  const fs::path path = fs::path(output).lexically_normal();
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  const fs::path folder = (path.has_filename() ? path : path.parent_path()).parent_path();
  if (absl::StartsWith(name.string(), "checkpoint-") &&
      fs::exists((folder.empty() ? "." : folder) / "run.json", error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "-o ", output, ": would count as a checkpoint of the run there; give it another name"));
  }
  const fs::file_status status = fs::symlink_status(output, error);
  if (!fs::exists(status)) return absl::OkStatus();
  if (fs::is_directory(status) && fs::is_empty(output, error)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("-o ", output, ": is there already",
                   fs::is_directory(status) ? " and not empty" : " and no directory",
                   "; give the name of a directory to make"));
}

absl::StatusOr<std::string> OutputDirOfJob(const GlobalOptions& global, const std::string& job_id) {
  HARMONY_ASSIGN_OR_RETURN(const RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  HARMONY_ASSIGN_OR_RETURN(const KnownJobs known, FindJobs(global, paths, job_id));
  return known.jobs[0].output_dir();
}

// The checkpoint directory that is meant.
absl::StatusOr<std::string> FindCheckpoint(const GlobalOptions& global,
                                           const ExportOptions& options) {
  std::string run = options.run;
  std::error_code error;
  if (!fs::is_directory(run, error)) {
    const absl::StatusOr<std::string> output_dir = OutputDirOfJob(global, run);
    if (!output_dir.ok()) {
      return WithContext(output_dir.status(), absl::StrCat("export: ", run, " is no directory"));
    }
    run = *output_dir;
  } else if (fs::exists(fs::path(run) / "manifest.json", error)) {
    if (!options.checkpoint) return run;
    return absl::InvalidArgumentError(absl::StrCat("export: ", run,
                                                   " is a checkpoint itself: give it without "
                                                   "--checkpoint, or the directory it is in"));
  }
  const std::vector<int64_t> steps = io::ListCheckpoints(run);
  if (steps.empty()) {
    return absl::NotFoundError(
        absl::StrCat("export: ", run,
                     " has no checkpoints; one is written at the end of a run, when it is "
                     "stopped, and on the way with save_steps"));
  }
  const int64_t wanted = options.checkpoint.value_or(steps.front());
  if (std::find(steps.begin(), steps.end(), wanted) == steps.end()) {
    return absl::NotFoundError(absl::StrCat("export: ", run, " has no checkpoint of step ", wanted,
                                            "; there are those of ", absl::StrJoin(steps, ", ")));
  }
  return (fs::path(run) / io::CheckpointName(wanted)).string();
}

absl::Status Export(const GlobalOptions& global, const ExportOptions& options) {
  HARMONY_RETURN_IF_ERROR(CheckOutput(options.output));
  HARMONY_ASSIGN_OR_RETURN(const std::string checkpoint, FindCheckpoint(global, options));
  const sigset_t signals = SignalsThatStop();
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&signals, number) == 1) StopOn(number);
  }
  HARMONY_RETURN_IF_ERROR_CTX(
      io::ExportCheckpoint({checkpoint, options.output, ParsePrecision(options.dtype)}, &stop),
      absl::StrCat("exporting ", checkpoint));
  if (global.json) {
    PrintJson({{"checkpoint", checkpoint}, {"directory", options.output}});
  } else {
    printf("%s\n", options.output.c_str());
    fprintf(stderr, "this is %s\n", checkpoint.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

int ExportCommand(const GlobalOptions& global, const ExportOptions& options) {
  const absl::Status status = Export(global, options);
  if (status.ok()) return 0;
  const int code = Fail(status);
  return stopped_by != 0 ? 128 + stopped_by : code;
}

}  // namespace harmony::client
