#include "client/commands/down.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/launcher/pidfd.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/io/atomic_file.h"
#include "common/io/checkpoint_manifest.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

constexpr int kFirstLookMs = 50, kLookMs = 500;

Bytes SizeOfFolder(const fs::path& folder) {
  Bytes size;
  std::error_code error;  // it may vanish meanwhile, or be renamed
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const auto bytes = fs::file_size(at->path(), error);
    if (!error) size += Bytes(static_cast<int64_t>(bytes));
    error.clear();
  }
  return size;
}

// How much of a checkpoint is written, beside the last one's size, which it will have, too; empty
// while none is being written.
std::string CheckpointUnderWay(const std::string& output_dir) {
  std::error_code error;
  for (fs::directory_iterator at(output_dir, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    const size_t suffix = name.find(io::kPartialInfix);
    if (!absl::StartsWith(name, "checkpoint-") || suffix == std::string::npos) continue;
    std::string text = absl::StrCat(name.substr(0, suffix), ": ", FormatBytes(SizeOfFolder(*at)));
    if (const std::vector<int64_t> steps = io::ListCheckpoints(output_dir); !steps.empty()) {
      const fs::path last = fs::path(output_dir) / io::CheckpointName(steps.front());
      absl::StrAppend(&text, " of ", FormatBytes(SizeOfFolder(last)));
    }
    return absl::StrCat(text, " written");
  }
  return "";
}

// What is awaited of a job that is to stop; empty for others.
std::string AwaitedOf(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_WAITING) {
    return absl::StrCat(job.job_id(),
                        " cannot write its checkpoint, and tries again until it can: `harmony "
                        "status ",
                        job.job_id(), "` says what it lacks");
  }
  if (job.state() != v1::JOB_STATE_STOPPING) return "";
  const std::string written = CheckpointUnderWay(job.output_dir());
  return absl::StrCat(job.job_id(), written.empty() ? " finishes the step in flight" : " writes ",
                      written);
}

// All jobs; none where the coordinator does not answer (any more).
v1::ListResponse JobsOf(const RuntimePaths& paths) {
  if (!SocketAccepts(paths.socket())) return {};
  return CoordinatorClient(rpc::SocketEndpoint(paths.socket()))
      .List({})
      .value_or(v1::ListResponse());
}

// What an end at once loses, of each job.
void SayLosses(const RuntimePaths& paths) {
  const v1::ListResponse jobs = JobsOf(paths);
  for (const v1::Job& job : jobs.jobs()) {
    const std::string loss = LossWithoutCheckpoint(job);
    if (!loss.empty()) fprintf(stderr, "%s loses %s\n", job.job_id().c_str(), loss.c_str());
  }
}

// Says on standard error, whenever it changes, what is awaited.
class Waiting {
 public:
  explicit Waiting(const RuntimePaths& paths) : paths_(paths) {}

  void Look() {
    const v1::ListResponse jobs = JobsOf(paths_);
    for (const v1::Job& job : jobs.jobs()) {
      const std::string text = AwaitedOf(job);
      if (text.empty() || text == said_) continue;
      if (said_.empty()) SayHowToEnd(job);
      said_ = text;
      fprintf(stderr, "%s\n", text.c_str());
    }
  }

 private:
  static void SayHowToEnd(const v1::Job& job) {
    const std::string loss = LossWithoutCheckpoint(job);
    fprintf(stderr, "waiting for a checkpoint of %s; `harmony down --now` does not%s\n",
            job.job_id().c_str(), loss.empty() ? "" : absl::StrCat(", and loses ", loss).c_str());
  }

  const RuntimePaths& paths_;
  std::string said_;
};

absl::Status Signal(const RuntimePaths& paths, int pidfd, pid_t holder, bool now) {
  const absl::StatusOr<ProcessList> list = ReadProcessList(paths);
  if (list.ok() && list->units) {
    return absl::FailedPreconditionError(
        "systemd has started these processes, and would start them again: `systemctl stop "
        "harmony.target`, which waits for the running job's checkpoint");
  }
  // A second SIGTERM would be taken for impatience.
  if (!now && list.ok() && list->stopping) {
    fprintf(stderr, "it was told to stop before: waiting\n");
    return absl::OkStatus();
  }
  if (pidfd_send_signal(pidfd, now ? SIGQUIT : SIGTERM, nullptr, 0) != 0 && errno != ESRCH) {
    return absl::ErrnoToStatus(errno, absl::StrCat("signalling process ", holder));
  }
  return absl::OkStatus();
}

absl::Status RemoveWhatIsLeft(const RuntimePaths& paths) {
  const absl::Status status = RemoveStaleFiles(paths);
  // Another `down` does the same at this moment, or a successor has come up, whose files they are.
  if (!absl::IsFailedPrecondition(status)) return status;
  const bool others = RuntimeLockHolder(paths) != 0 || !SocketAccepts(paths.socket());
  return others ? absl::OkStatus() : status;
}

absl::Status Down(const RuntimePaths& paths, const DownOptions& options, bool json) {
  const pid_t holder = RuntimeLockHolder(paths);
  if (json) PrintJson({{"socket", paths.socket()}, {"was_up", holder != 0}});
  if (holder == 0) {
    HARMONY_RETURN_IF_ERROR(RemoveWhatIsLeft(paths));
    if (!json) printf("harmony is not up on %s\n", paths.socket().c_str());
    return absl::OkStatus();
  }
  ipc::UniqueFd pidfd(pidfd_open(holder, 0));
  if (!pidfd.valid() && errno != ESRCH) {
    return absl::ErrnoToStatus(errno, absl::StrCat("reaching process ", holder));
  }
  // Still the holder: so the descriptor is that of the supervisor, not of a successor of its
  // number.
  if (pidfd.valid() && RuntimeLockHolder(paths) == holder) {
    if (options.now) SayLosses(paths);
    if (absl::Status status = Signal(paths, pidfd.get(), holder, options.now); !status.ok()) {
      return status;
    }
    Waiting waiting(paths);
    pollfd wait = {pidfd.get(), POLLIN, 0};
    for (int ready = 0, pause = kFirstLookMs; ready <= 0; pause = kLookMs) {
      ready = poll(&wait, 1, pause);
      if (ready == 0 && !options.now) waiting.Look();
    }
  }
  return RemoveWhatIsLeft(paths);
}

}  // namespace

std::string LossWithoutCheckpoint(const v1::Job& job) {
  if (job.job_id().empty() || IsFinal(job.state())) return "";
  const std::vector<int64_t> steps = io::ListCheckpoints(job.output_dir());
  const int64_t saved = steps.empty() ? 0 : steps.front();
  if (job.completed_steps() <= saved) return "";
  const std::string since =
      steps.empty() ? "there is no checkpoint" : absl::StrCat("trained since checkpoint-", saved);
  const std::string steps_lost =
      job.completed_steps() == saved + 1
          ? absl::StrCat("step ", saved + 1)
          : absl::StrCat("steps ", saved + 1, " to ", job.completed_steps());
  return absl::StrCat(steps_lost, " (", since, ")");
}

int DownCommand(const GlobalOptions& global, const DownOptions& options) {
  absl::StatusOr<RuntimePaths> paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return Fail(paths.status());
  if (options.say_losses) {
    SayLosses(*paths);
    return 0;
  }
  absl::Status status = Down(*paths, options, global.json);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace harmony::client
