#include "client/commands/stored_jobs.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/launcher/child_process.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace harmony::client {
namespace {

constexpr int64_t kMostAnswerBytes = int64_t{1} << 31;  // no message can be larger

// The directory whose database is meant: what --state-dir or the environment says goes before what
// processes had that are gone.
std::string StateDirOf(const GlobalOptions& global, const RuntimePaths& paths) {
  return global.state_dir.empty() ? PathsInUse(paths).state_dir : paths.state_dir;
}

// The answer of `harmony-coordinator --jobs-once`, which it leaves in a file without a name.
template <typename Message>
absl::StatusOr<Message> AskOnce(const GlobalOptions& global, const RuntimePaths& paths,
                                const std::string& what, std::vector<std::string> arguments) {
  const ipc::UniqueFd answer(memfd_create("answer", MFD_CLOEXEC));
  if (!answer.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  ChildSpec spec;
  spec.program = ProgramPath(global, "harmony-coordinator");
  spec.arguments = {"--jobs-once", what, "--state-dir", StateDirOf(global, paths)};
  spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
  spec.arguments.insert(spec.arguments.end(), {"--answer-fd", absl::StrCat(answer.get())});
  spec.inherited_fds = {answer.get()};
  spec.log_path = "/dev/null";  // what it has to say is in the answer
  spec.death_signal = 0;        // it ends by itself, and removes its copy of the database
  HARMONY_ASSIGN_OR_RETURN(const Child child, Spawn(spec));
  int wait_status = 0;
  while (waitpid(child.pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  HARMONY_ASSIGN_OR_RETURN(
      const std::string text,
      io::ReadWholeFile(absl::StrCat("/proc/self/fd/", answer.get()), kMostAnswerBytes));
  const size_t line = text.find('\n');
  int code = 0;
  if (line == std::string::npos || !absl::SimpleAtoi(text.substr(0, line), &code)) {
    return absl::InternalError(absl::StrCat(spec.program, " gave no answer, but ",
                                            DescribeExit(wait_status),
                                            "; `harmony doctor` says whether it is of this "
                                            "version"));
  }
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), text.substr(line + 1));
  Message message;
  if (!message.ParseFromString(text.substr(line + 1))) {
    return absl::InternalError(
        absl::StrCat("the answer of ", spec.program, " cannot be read: is it of this version?"));
  }
  return message;
}

}  // namespace

absl::StatusOr<KnownJobs> FindJobs(const GlobalOptions& global, const RuntimePaths& paths,
                                   const std::string& job_id) {
  KnownJobs known;
  if (!IsUp(global, paths)) {
    std::vector<std::string> arguments;
    if (!job_id.empty()) arguments = {absl::StrCat("--job=", job_id)};  // it may begin with "-"
    HARMONY_ASSIGN_OR_RETURN(v1::StoredJobs stored,
                             AskOnce<v1::StoredJobs>(global, paths, "read", std::move(arguments)));
    known.jobs = std::move(*stored.mutable_jobs());
    known.holder = stored.holder();
    return known;
  }
  HARMONY_ASSIGN_OR_RETURN(known.coordinator, ConnectToCoordinator(global, paths));
  if (job_id.empty()) {
    HARMONY_ASSIGN_OR_RETURN(v1::ListResponse list, known.coordinator->List({}));
    known.jobs = std::move(*list.mutable_jobs());
    return known;
  }
  v1::GetRequest request;
  request.set_job_id(job_id);
  HARMONY_ASSIGN_OR_RETURN(*known.jobs.Add(), known.coordinator->Get(request));
  return known;
}

absl::StatusOr<v1::PruneResponse> PruneStoredJobs(const GlobalOptions& global,
                                                  const RuntimePaths& paths,
                                                  const v1::PruneRequest& request) {
  return AskOnce<v1::PruneResponse>(global, paths, "prune",
                                    {"--ended-before", request.ended_before()});
}

void SayIfNothingRuns(const RuntimePaths& paths, const KnownJobs& known) {
  if (known.up()) return;
  fflush(stdout);  // the jobs themselves come first
  if (known.holder != 0) {
    const std::string holder =
        known.holder > 0 ? absl::StrCat("process ", known.holder) : "another machine";
    fprintf(stderr,
            "no coordinator is up on %s; these jobs are of %s (a `harmony run`, or a coordinator "
            "elsewhere), as its database has them\n",
            paths.socket().c_str(), holder.c_str());
    return;
  }
  const bool unfinished = std::any_of(known.jobs.begin(), known.jobs.end(),
                                      [](const v1::Job& job) { return !IsFinal(job.state()); });
  fprintf(stderr, "nothing is running: no coordinator is up on %s%s\n", paths.socket().c_str(),
          unfinished ? "; jobs that have not ended go on after `harmony up`" : "");
}

}  // namespace harmony::client
