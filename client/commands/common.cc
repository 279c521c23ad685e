#include "client/commands/common.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/launcher/device_memory.h"
#include "client/launcher/launch.h"
#include "client/launcher/stop_signals.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_line.h"
#include "common/io/file.h"
#include "common/ipc/host_memory.h"
#include "common/job/job_file.h"
#include "common/plan/plan_json.h"
#include "common/profile/profile_json.h"
#include "common/rpc/address.h"

namespace harmony::client {
namespace {

bool fail_in_json = false;  // of a command line tool that does one thing

absl::StatusOr<std::string> ReadText(const std::string& what, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", path, " is a directory"));
  }
  absl::StatusOr<std::string> text = io::ReadWholeFile(path, limits::kMostFileBytes);
  if (!text.ok()) return WithContext(text.status(), what);
  return text;
}

}  // namespace

ipc::UniqueFd TakeOverSignals() {
  const sigset_t set = SignalsThatStop();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return ipc::UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

void FailInJson() { fail_in_json = true; }

void LogToStderr(const std::string& name) {
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::set_pattern(absl::StrCat(kLogTime, " %l %n %v"), spdlog::pattern_time_type::utc);
}

std::string BinDir(const GlobalOptions& global) {
  return global.bin_dir.empty() ? OwnBinDir() : global.bin_dir;
}

std::string ProgramPath(const GlobalOptions& global, absl::string_view name) {
  return absl::StrCat(BinDir(global), "/", name);
}

absl::StatusOr<Cluster> ResolveClusterHere(const GlobalOptions& global,
                                           const ClusterOptions& options) {
  return ResolveCluster(options.config, options.devices, options.host_memory,
                        ipc::AvailableHostMemory(), [&] { return FindGpus(BinDir(global)); });
}

std::string DescribeDefault(const Cluster& cluster) {
  const char* const what = cluster.specs.front().kind == plan::DeviceKind::kCuda
                               ? ", the GPUs of this machine"
                               : ", a device emulated on the CPU";
  return absl::StrCat(cluster.devices, what,
                      cluster.why_no_gpus.empty() ? "" : " (" + cluster.why_no_gpus + ")");
}

int Fail(const absl::Status& status) {
  std::string message(status.message());
  if (message.empty()) message = status.ToString();
  if (fail_in_json) {
    fputs(document::ErrorLine(absl::Status(status.code(), message)).c_str(), stderr);
  } else {
    fprintf(stderr, "error: %s\n", message.c_str());
  }
  return ExitCodeOf(status);
}

void PrintFinishedBefore(FILE* to) {
  fprintf(
      to,
      "this very run has finished before: its model is in final/ of its output_dir; nothing to do "
      "(--overwrite trains it again)\n");
}

void PrintJson(const nlohmann::ordered_json& json) {
  printf("%s\n",
         json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

bool IsUp(const GlobalOptions& global, const RuntimePaths& paths) {
  if (!global.address.empty()) return true;
  // While a supervisor lives, a coordinator that does not accept now is about to.
  return SocketAccepts(paths.socket()) || RuntimeLockHolder(paths) != 0;
}

absl::StatusOr<rpc::Endpoint> ResolveEndpoint(const GlobalOptions& global,
                                              const RuntimePaths& paths) {
  if (global.address.empty()) return rpc::SocketEndpoint(paths.socket());
  HARMONY_ASSIGN_OR_RETURN(const rpc::HostPort address,
                           rpc::ParseHostPort(global.address, "--address"));
  rpc::Endpoint endpoint;
  endpoint.address = address.ToString();
  HARMONY_ASSIGN_OR_RETURN(endpoint.tls, rpc::ReadTlsFiles(global.tls, {}, absl::Now()));
  return endpoint;
}

absl::StatusOr<std::unique_ptr<CoordinatorClient>> ConnectToCoordinator(const GlobalOptions& global,
                                                                        const RuntimePaths& paths) {
  HARMONY_ASSIGN_OR_RETURN(rpc::Endpoint endpoint, ResolveEndpoint(global, paths));
  if (!IsUp(global, paths)) {
    return absl::UnavailableError(absl::StrCat("no coordinator listens on ", paths.socket(),
                                               ": start one with `harmony up`"));
  }
  return std::make_unique<CoordinatorClient>(std::move(endpoint));
}

absl::StatusOr<v1::SubmitRequest> MakeSubmitRequest(const JobOptions& options) {
  for (const std::string& text : options.overrides) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--set ", text, ": key=value is expected"));
    }
  }
  v1::SubmitRequest request;
  HARMONY_ASSIGN_OR_RETURN(*request.mutable_job_yaml(), ReadText("job file", options.path));
  request.set_job_path(std::filesystem::absolute(options.path).lexically_normal().string());
  for (const std::string& override_text : options.overrides) request.add_overrides(override_text);
  // Where the current folder was removed, relative paths begin at the job file's.
  std::error_code removed;
  request.set_working_directory(std::filesystem::current_path(removed).string());
  request.set_overwrite(options.overwrite);
  if (!options.profile.empty()) {
    HARMONY_ASSIGN_OR_RETURN(*request.mutable_profile(), ReadText("profile", options.profile));
    request.set_profile_path(options.profile);
    HARMONY_RETURN_IF_ERROR(profile::ParseProfile(request.profile(), options.profile).status());
  }
  if (!options.plan.empty()) {
    HARMONY_ASSIGN_OR_RETURN(*request.mutable_plan(), ReadText("plan", options.plan));
    request.set_plan_path(options.plan);
    HARMONY_RETURN_IF_ERROR(plan::ParsePlanFile(request.plan(), options.plan).status());
  }
  return request;
}

std::vector<std::string> FilesOf(const JobOptions& options, const v1::SubmitRequest& request) {
  std::vector<std::string> files = {options.path, options.profile, options.plan};
  const job::JobOverrides overrides{{request.overrides().begin(), request.overrides().end()},
                                    request.working_directory()};
  const absl::StatusOr<job::JobFile> file =
      job::ReadJobFile(request.job_yaml(), request.job_path(), overrides);
  if (!file.ok()) return files;  // whoever plans the job says why
  files.push_back(file->job.data_path);
  for (const auto& [name, path] : file->job.data_inputs) files.push_back(path);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(file->job.model_name_or_path, error), end;
       !error && entry != end; entry.increment(error)) {
    files.push_back(entry->path().string());
  }
  return files;
}

int ExitCodeOfJob(const v1::Job& job) {
  if (job.state() != v1::JOB_STATE_FAILED) return 0;
  if (job.completed_steps() > 0) return 1;
  int code = ExitCodeOf(absl::Status(static_cast<absl::StatusCode>(job.error_code()), "failed"));
  return code == 2 ? 2 : 1;
}

}  // namespace harmony::client
