#include "client/commands/inspect.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/commands/calibration.h"
#include "client/commands/follow_logs.h"
#include "client/launcher/launch.h"
#include "client/rpc/proto_json.h"
#include "common/base/status.h"

namespace harmony::client {
namespace {

// Becomes the program arguments[0]; returns only when that is not possible.
absl::Status Become(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  fflush(nullptr);
  execv(pointers[0], pointers.data());
  return absl::ErrnoToStatus(errno, absl::StrCat("starting ", arguments[0]));
}

// A file without a name that the program to become inherits.
absl::StatusOr<std::string> InheritedFile(const std::string& text) {
  const int fd = memfd_create("calibration", 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0) return absl::ErrnoToStatus(errno, "writing the calibration");
    written += static_cast<size_t>(count);
  }
  return absl::StrCat("/proc/self/fd/", fd);
}

// The program that plans for itself, with what it has to be told beside the job and the machine.
absl::StatusOr<std::vector<std::string>> PlanningProgram(const GlobalOptions& global,
                                                         const PlanOptions& options) {
  if (!options.compare) {
    return std::vector<std::string>{ProgramPath(global, "harmony-coordinator"), "--plan-once"};
  }
  // A laboratory (bench/baselines), which an installation may lack.
  const std::string program = ProgramPath(global, "harmony-compare");
  if (access(program.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("plan --compare: there is no ", program,
                                                      "; `ninja -C build harmony-compare` "
                                                      "in the source tree builds it"));
  }
  return std::vector<std::string>{program};
}

// Becomes the planner; returns only when that is not possible.
absl::Status PlanAlone(const GlobalOptions& global, const PlanOptions& options,
                       const v1::SubmitRequest& submit) {
  HARMONY_ASSIGN_OR_RETURN(Cluster cluster, ResolveClusterHere(global, options.cluster));
  if (cluster.default_devices) {
    fprintf(stderr, "no --devices given: planning for %s\n", DescribeDefault(cluster).c_str());
  }
  HARMONY_ASSIGN_OR_RETURN(
      const std::string calibrated,
      CalibratedProfile(global, options.job, submit, cluster, CalibrateWhen::kAlways,
                        [](const std::string& text) { fprintf(stderr, "%s\n", text.c_str()); }));
  HARMONY_ASSIGN_OR_RETURN(std::vector<std::string> arguments, PlanningProgram(global, options));
  arguments.insert(arguments.end(), {"--job", submit.job_path(), "--devices", cluster.devices,
                                     "--host-memory", absl::StrCat(cluster.host_memory.count())});
  for (const std::string& text : options.job.overrides) {
    arguments.insert(arguments.end(), {"--set", text});
  }
  if (!options.job.profile.empty()) {
    arguments.insert(arguments.end(), {"--profile", options.job.profile});
  } else if (!calibrated.empty()) {
    HARMONY_ASSIGN_OR_RETURN(const std::string file, InheritedFile(calibrated));
    arguments.insert(arguments.end(), {"--profile", file});
  }
  if (!options.job.plan.empty()) {
    arguments.insert(arguments.end(), {"--plan", options.job.plan});
  }
  if (global.json) arguments.push_back("--json");
  if (options.explain) arguments.push_back("--explain");
  return Become(std::move(arguments));
}

absl::Status Plan(const GlobalOptions& global, const PlanOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(v1::SubmitRequest submit, MakeSubmitRequest(options.job));
  HARMONY_ASSIGN_OR_RETURN(RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  const bool elsewhere = !global.address.empty();
  if (elsewhere && options.cluster.given()) {
    return absl::InvalidArgumentError(
        "plan: --address asks a coordinator, which has its own devices; leave out --devices, "
        "--host-memory and --config, or --address");
  }
  if (options.cluster.given() || (!elsewhere && !SocketAccepts(paths.socket()))) {
    return PlanAlone(global, options, submit);
  }
  if (options.compare) {
    return absl::FailedPreconditionError(
        "plan --compare: the coordinator that is up does not compare; say for which devices, with "
        "--devices or --config");
  }
  if (options.job.recalibrate) {
    fprintf(stderr,
            "--recalibrate: the coordinator that is up measures nothing for a plan; say for which "
            "devices, with --devices or --config\n");
  }
  v1::PlanRequest request;
  request.set_job_yaml(submit.job_yaml());
  request.set_job_path(submit.job_path());
  *request.mutable_overrides() = submit.overrides();
  request.set_working_directory(submit.working_directory());
  request.set_profile(submit.profile());
  request.set_profile_path(submit.profile_path());
  request.set_plan(submit.plan());
  request.set_plan_path(submit.plan_path());
  request.set_explain(options.explain);
  HARMONY_ASSIGN_OR_RETURN(auto client, ConnectToCoordinator(global, paths));
  HARMONY_ASSIGN_OR_RETURN(v1::PlanResponse plan, client->Plan(request));
  printf("%s\n", (global.json ? plan.json() : plan.text()).c_str());
  return absl::OkStatus();
}

struct LogText {
  std::string process;
  std::vector<std::string> lines;
};

absl::StatusOr<std::vector<LogText>> ReadLogs(const RuntimePaths& paths,
                                              const LogsOptions& options) {
  const std::string dir = PathsInUse(paths).logs();
  const std::vector<std::string> files = LogFiles(dir, options.process);
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no logs", options.process.empty() ? "" : " of " + options.process, " in ", dir));
  }
  std::vector<LogText> logs;
  for (const std::string& file : files) {
    LogText log{std::filesystem::path(file).stem(), {}};
    log.lines = absl::StrSplit(TailOfFile(file, options.lines), '\n', absl::SkipEmpty());
    logs.push_back(std::move(log));
  }
  return logs;
}

absl::Status JobLog(const GlobalOptions& global, const RuntimePaths& paths,
                    const LogsOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(auto client, ConnectToCoordinator(global, paths));
  v1::GetLogRequest request;
  request.set_job_id(options.job_id);
  HARMONY_ASSIGN_OR_RETURN(v1::GetLogResponse log, client->GetLog(request));
  int extra = std::max(log.lines_size() - options.lines, 0);
  log.mutable_lines()->DeleteSubrange(0, extra);
  if (global.json) {
    PrintJson(ToJson(log)["lines"]);
    return absl::OkStatus();
  }
  for (const v1::LogLine& line : log.lines()) {
    printf("%s  %s\n", line.time().c_str(), line.text().c_str());
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Logs(const GlobalOptions& global, const LogsOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  if (!options.job_id.empty() && !options.process.empty()) {
    return absl::InvalidArgumentError(
        "logs: --process is about the processes' own logs: give it or a job, not both");
  }
  if (options.job_id.empty() && !global.address.empty()) {
    return absl::InvalidArgumentError(
        "logs: those of the processes are on the coordinator's machine; with --address, name a "
        "job");
  }
  if (options.follow) return FollowLogs(global, paths, options);
  if (!options.job_id.empty()) {
    HARMONY_RETURN_IF_ERROR(JobLog(global, paths, options));
    return 0;
  }
  HARMONY_ASSIGN_OR_RETURN(std::vector<LogText> logs, ReadLogs(paths, options));
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const LogText& log : logs) {
    if (global.json) {
      json.push_back({{"process", log.process}, {"lines", log.lines}});
    } else if (!log.lines.empty()) {
      printf("==> %s <==\n%s\n\n", log.process.c_str(), absl::StrJoin(log.lines, "\n").c_str());
    }
  }
  if (global.json) PrintJson(json);
  return 0;
}

}  // namespace

int PlanCommand(const GlobalOptions& global, const PlanOptions& options) {
  absl::Status status = Plan(global, options);
  if (status.ok()) return 0;
  int code = Fail(status);
  return absl::IsResourceExhausted(status) ? 2 : code;
}

int LogsCommand(const GlobalOptions& global, const LogsOptions& options) {
  const absl::StatusOr<int> code = Logs(global, options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace harmony::client
