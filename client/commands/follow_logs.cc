#include "client/commands/follow_logs.h"

#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/commands/followed_file.h"
#include "client/rpc/job_follower.h"
#include "client/rpc/proto_json.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/document/json_line.h"

namespace harmony::client {
namespace {

using document::JsonLine;

constexpr int kLookEveryMillis = 200;

// OutOfRange: nobody reads any more.
absl::Status Print(const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(STDOUT_FILENO, text.data() + written, text.size() - written);
    if (count < 0 && errno == EPIPE) return absl::OutOfRangeError("nobody reads");
    if (count < 0 && errno != EINTR)
      return absl::ErrnoToStatus(errno, "writing to standard output");
    if (count > 0) written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

// Waits until it is time to look again; the exit code when something ends this first.
std::optional<int> Pause(int signals) {
  pollfd wait[] = {{signals, POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
  if (poll(wait, 2, kLookEveryMillis) <= 0) return std::nullopt;
  // Nobody reads it any more.
  if ((wait[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return 0;
  signalfd_siginfo info;
  if (read(signals, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return info.ssi_signo == SIGINT ? 0 : 128 + static_cast<int>(info.ssi_signo);
}

// The logs of all processes, as they come and go.
class ProcessLogs {
 public:
  ProcessLogs(const GlobalOptions& global, const LogsOptions& options)
      : global_(global), options_(options) {}

  bool any() const { return !files_.empty(); }

  // Shows what is new.
  absl::Status Look(const std::string& dir) {
    for (const std::string& path : LogFiles(dir, options_.process)) {
      // A log that appears while we follow is new from its beginning.
      files_.try_emplace(path, path, first_look_ ? options_.lines : -1);
    }
    first_look_ = false;
    for (auto& [path, file] : files_) {
      const std::string process = std::filesystem::path(path).stem().string();
      HARMONY_RETURN_IF_ERROR(Show(process, file.TakeLines()));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Show(const std::string& process, const std::vector<std::string>& lines) {
    if (lines.empty()) return absl::OkStatus();
    std::string text;
    if (!global_.json && process != shown_) {
      absl::StrAppend(&text, shown_.empty() ? "" : "\n", "==> ", process, " <==\n");
      shown_ = process;
    }
    for (const std::string& line : lines) {
      absl::StrAppend(
          &text, global_.json ? JsonLine({{"process", process}, {"line", line}}) : line + "\n");
    }
    return Print(text);
  }

  const GlobalOptions& global_;
  const LogsOptions& options_;
  bool first_look_ = true;
  std::map<std::string, FollowedFile> files_;  // by path
  std::string shown_;                          // whose lines were printed last
};

absl::StatusOr<int> FollowProcesses(const GlobalOptions& global, const RuntimePaths& paths,
                                    const LogsOptions& options, int signals) {
  ProcessLogs logs(global, options);
  for (bool waits = false;;) {
    const std::string dir = PathsInUse(paths).logs();
    HARMONY_RETURN_IF_ERROR(logs.Look(dir));
    if (!logs.any() && !waits && !global.json) {
      fprintf(stderr, "no logs%s in %s yet: waiting for them\n",
              options.process.empty() ? "" : absl::StrCat(" of ", options.process).c_str(),
              dir.c_str());
      waits = true;
    }
    if (const std::optional<int> code = Pause(signals)) return *code;
  }
}

// Prints what was reported after the first `*shown` lines; those begin at the last `options.lines`.
// True: there is nothing to come.
absl::StatusOr<bool> ShowReports(const GlobalOptions& global, const LogsOptions& options,
                                 CoordinatorClient& client, std::optional<int>* shown) {
  v1::GetRequest which;
  which.set_job_id(options.job_id);
  // Before its log: what is reported last is reported before the job has ended.
  HARMONY_ASSIGN_OR_RETURN(const v1::Job job, client.Get(which));
  v1::GetLogRequest request;
  request.set_job_id(options.job_id);
  HARMONY_ASSIGN_OR_RETURN(const v1::GetLogResponse log, client.GetLog(request));
  if (!*shown) *shown = std::max(log.lines_size() - options.lines, 0);
  std::string text;
  for (; **shown < log.lines_size(); ++**shown) {
    const v1::LogLine& line = log.lines(**shown);
    absl::StrAppend(&text, global.json ? JsonLine(ToJson(line))
                                       : absl::StrCat(line.time(), "  ", line.text(), "\n"));
  }
  HARMONY_RETURN_IF_ERROR(Print(text));
  return IsFinal(job.state()) && job.state() != v1::JOB_STATE_PAUSED;
}

absl::StatusOr<int> FollowJob(const GlobalOptions& global, const RuntimePaths& paths,
                              const LogsOptions& options, int signals) {
  HARMONY_ASSIGN_OR_RETURN(auto client, ConnectToCoordinator(global, paths));
  std::optional<int> shown;
  Nanos answered = MonotonicClock().Now();
  for (;;) {
    const absl::StatusOr<bool> over = ShowReports(global, options, *client, &shown);
    const Nanos now = MonotonicClock().Now();
    if (over.ok()) {
      if (*over) return 0;
      answered = now;
    } else if (!IsConnectionLoss(over.status()) || now - answered > kCoordinatorPatience) {
      return over.status();  // a coordinator that is restarted is waited for
    }
    if (const std::optional<int> code = Pause(signals)) return *code;
  }
}

}  // namespace

absl::StatusOr<int> FollowLogs(const GlobalOptions& global, const RuntimePaths& paths,
                               const LogsOptions& options) {
  // Before any thread is made: all of them must leave the signals to us.
  const ipc::UniqueFd signals = TakeOverSignals();
  if (!signals.valid()) return absl::ErrnoToStatus(errno, "signalfd");
  signal(SIGPIPE, SIG_IGN);
  const absl::StatusOr<int> code = options.job_id.empty()
                                       ? FollowProcesses(global, paths, options, signals.get())
                                       : FollowJob(global, paths, options, signals.get());
  return absl::IsOutOfRange(code.status()) ? 0 : code;
}

}  // namespace harmony::client
