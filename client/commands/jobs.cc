#include "client/commands/jobs.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/calibration.h"
#include "client/commands/stored_jobs.h"
#include "client/launcher/cluster.h"
#include "client/progress/render.h"
#include "client/progress/view.h"
#include "client/rpc/job_follower.h"
#include "client/rpc/proto_json.h"
#include "common/base/status.h"

namespace harmony::client {
namespace {

using Json = nlohmann::ordered_json;

std::string StepText(const v1::Job& job) {
  return absl::StrCat(job.completed_steps(), "/", job.max_steps());
}

// `live`: something carries jobs out. A job that nothing carries out is in no state of a job that
// runs, whatever the database says.
std::string StateText(const v1::Job& job, bool live) {
  const bool queued = job.state() == v1::JOB_STATE_QUEUED;
  return live || queued || IsFinal(job.state()) ? StateName(job.state()) : "interrupted";
}

using Jobs = google::protobuf::RepeatedPtrField<v1::Job>;

std::string JobTable(const Jobs& jobs, bool live = true) {
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "STATE", "STEP", "LOSS", "SUBMITTED", "OUTPUT"}};
  for (const v1::Job& job : jobs) {
    rows.push_back({job.job_id(), StateText(job, live), StepText(job),
                    job.completed_steps() > 0 ? absl::StrFormat("%.4f", job.last_loss()) : "-",
                    job.submitted_at(), job.output_dir()});
  }
  return RenderTable(rows);
}

std::string JobText(const v1::Job& job, bool live) {
  std::vector<std::vector<std::string>> rows = {
      {"job", job.job_id()},         {"state", StateText(job, live)},
      {"step", StepText(job)},       {"loss", absl::StrFormat("%.6g", job.last_loss())},
      {"output", job.output_dir()},  {"submitted", job.submitted_at()},
      {"started", job.started_at()}, {"ended", job.ended_at()}};
  std::string text = RenderTable(rows);
  if (!job.error().empty()) absl::StrAppend(&text, "error: ", job.error(), "\n");
  if (!job.plan_text().empty()) absl::StrAppend(&text, "\n", job.plan_text(), "\n");
  return text;
}

Json ProcessesJson(const ProcessList& list) {
  Json all = Json::array();
  for (const ProcessEntry& entry : list.processes) {
    Json one;
    one["role"] = entry.role;
    if (entry.device >= 0) one["device"] = entry.device;
    one["pid"] = entry.pid;
    one["incarnation"] = entry.incarnation;
    one["log"] = entry.log;
    all.push_back(std::move(one));
  }
  return all;
}

std::string ProcessTable(const ProcessList& list) {
  std::vector<std::vector<std::string>> rows = {
      {"PROCESS", "PID", "INCARNATION", "LOG"},
      {"supervisor", absl::StrCat(list.supervisor), "-", "-"}};
  for (const ProcessEntry& entry : list.processes) {
    std::string name = entry.device >= 0 ? absl::StrCat(entry.role, " ", entry.device) : entry.role;
    rows.push_back({name, entry.pid > 0 ? absl::StrCat(entry.pid) : "(starting)",
                    absl::StrCat(entry.incarnation), entry.log});
  }
  return RenderTable(rows);
}

// A snapshot of a job that is not over: the second one, since rates and shares are those of the
// time since the one before.
std::optional<v1::Progress> Snapshot(CoordinatorClient& client, const v1::Job& job) {
  if (IsFinal(job.state())) return std::nullopt;
  std::optional<v1::Progress> snapshot;
  bool first = true;
  v1::WatchRequest request;
  request.set_job_id(job.job_id());
  (void)client.Watch(request, [&snapshot, &first](const v1::Progress& progress) {
    snapshot = progress;
    return std::exchange(first, false);
  });
  return snapshot;
}

// `up`: a coordinator has said so; else it is what the database has.
Json JobJson(const v1::Job& job, bool up) {
  Json json = ToJson(job);
  json["up"] = up;
  return json;
}

Json JobsJson(const Jobs& jobs, bool up) {
  Json json = Json::array();
  for (const v1::Job& job : jobs) {
    json.push_back(JobJson(job, up));
    DropTexts(json.back());
  }
  return json;
}

absl::Status ShowJob(const GlobalOptions& global, const RuntimePaths& paths,
                     const std::string& job_id) {
  HARMONY_ASSIGN_OR_RETURN(const KnownJobs known, FindJobs(global, paths, job_id));
  const v1::Job& job = known.jobs[0];
  std::optional<v1::Progress> snapshot;
  if (known.up()) snapshot = Snapshot(*known.coordinator, job);
  if (global.json) {
    Json json = JobJson(job, known.up());
    json["progress"] = snapshot ? ToJson(*snapshot) : Json(nullptr);
    if (snapshot) DropTexts(json["progress"]["job"]);
    PrintJson(json);
    return absl::OkStatus();
  }
  printf("%s", JobText(job, known.live()).c_str());
  if (snapshot) {
    for (const std::string& line : RenderFrame(*snapshot, 200, 200)) printf("%s\n", line.c_str());
  }
  SayIfNothingRuns(paths, known);
  return absl::OkStatus();
}

// The jobs of a coordinator elsewhere; its processes are its machine's business.
absl::Status ShowAllElsewhere(const GlobalOptions& global, const RuntimePaths& paths) {
  HARMONY_ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(global, paths));
  HARMONY_ASSIGN_OR_RETURN(const v1::ListResponse list, client->List({}));
  if (global.json) {
    PrintJson({{"up", true}, {"address", global.address}, {"jobs", JobsJson(list.jobs(), true)}});
    return absl::OkStatus();
  }
  printf("address  %s\n\n%s", global.address.c_str(), JobTable(list.jobs()).c_str());
  return absl::OkStatus();
}

absl::Status ShowAll(const GlobalOptions& global, const RuntimePaths& paths) {
  if (!global.address.empty()) return ShowAllElsewhere(global, paths);
  pid_t holder = RuntimeLockHolder(paths);
  absl::StatusOr<ProcessList> processes = ReadProcessList(paths);
  bool supervised = holder != 0 && processes.ok();
  absl::StatusOr<v1::ListResponse> jobs = absl::UnavailableError("not up");
  if (SocketAccepts(paths.socket()))
    jobs = CoordinatorClient(rpc::SocketEndpoint(paths.socket())).List({});
  if (global.json) {
    Json json;
    json["up"] = jobs.ok();
    json["socket"] = paths.socket();
    json["supervisor"] = supervised ? Json(holder) : Json(nullptr);
    json["devices"] = supervised ? Json(processes->devices) : Json(nullptr);
    json["processes"] = supervised ? ProcessesJson(*processes) : Json::array();
    json["jobs"] = jobs.ok() ? JobsJson(jobs->jobs(), /*up=*/true) : Json::array();
    PrintJson(json);
    return absl::OkStatus();
  }
  if (!supervised && !jobs.ok()) {
    printf("harmony is not up on %s; `harmony list` shows the jobs there were\n",
           paths.socket().c_str());
    return absl::OkStatus();
  }
  printf("socket   %s\n", paths.socket().c_str());
  if (supervised) {
    printf("devices  %s\n\n%s", processes->devices.c_str(), ProcessTable(*processes).c_str());
  }
  if (!jobs.ok()) printf("\nthe coordinator does not answer\n");
  if (jobs.ok()) printf("\n%s", JobTable(jobs->jobs()).c_str());
  return absl::OkStatus();
}

absl::Status List(const GlobalOptions& global) {
  HARMONY_ASSIGN_OR_RETURN(RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  HARMONY_ASSIGN_OR_RETURN(const KnownJobs known, FindJobs(global, paths, ""));
  if (global.json) {
    PrintJson(JobsJson(known.jobs, known.up()));
    return absl::OkStatus();
  }
  printf("%s", JobTable(known.jobs, known.live()).c_str());
  SayIfNothingRuns(paths, known);
  return absl::OkStatus();
}

// Cancel, Pause and Resume: a request with a job id, the job as answer.
template <typename Request>
int JobAction(const GlobalOptions& global, const std::string& job_id,
              absl::StatusOr<v1::Job> (CoordinatorClient::*action)(const Request&)) {
  absl::StatusOr<RuntimePaths> paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return Fail(paths.status());
  auto client = ConnectToCoordinator(global, *paths);
  if (!client.ok()) return Fail(client.status());
  Request request;
  request.set_job_id(job_id);
  absl::StatusOr<v1::Job> job = ((**client).*action)(request);
  if (!job.ok()) return Fail(job.status());
  if (global.json) {
    PrintJson(ToJson(*job));
  } else {
    printf("%s %s\n", job->job_id().c_str(), StateName(job->state()).c_str());
  }
  return 0;
}

bool AnythingRuns(CoordinatorClient& client) {
  const absl::StatusOr<v1::ListResponse> list = client.List({});
  return !list.ok() || std::any_of(list->jobs().begin(), list->jobs().end(),
                                   [](const v1::Job& job) { return !IsFinal(job.state()); });
}

// Speeds to plan by, of the devices that are up. Not measured beside a job: both would be slower.
absl::Status Calibrate(const GlobalOptions& global, const RuntimePaths& paths,
                       const JobOptions& options, CoordinatorClient& client,
                       v1::SubmitRequest* request) {
  const absl::StatusOr<ProcessList> processes = ReadProcessList(paths);
  if (!processes.ok()) return absl::OkStatus();  // others supervise it: the devices are not known
  Cluster cluster;
  cluster.devices = processes->devices;
  HARMONY_ASSIGN_OR_RETURN(cluster.specs, plan::ParseDevices(cluster.devices));
  HARMONY_ASSIGN_OR_RETURN(
      const std::string profile,
      CalibratedProfile(global, options, *request, cluster,
                        AnythingRuns(client) ? CalibrateWhen::kNever : CalibrateWhen::kIfWorthIt,
                        [](const std::string& text) { fprintf(stderr, "%s\n", text.c_str()); }));
  if (profile.empty()) return absl::OkStatus();
  request->set_profile(profile);
  request->set_profile_path(kCalibration);
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitResponse> Submit(const GlobalOptions& global, const RuntimePaths& paths,
                                          const JobOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(v1::SubmitRequest request, MakeSubmitRequest(options));
  std::unique_ptr<CoordinatorClient> client;
  {
    // The client's threads must not take what stops a calibration. Submitting, which may take as
    // long as planning does, can be interrupted as usual.
    const SignalMask as_before;
    const ipc::UniqueFd signals = TakeOverSignals();
    HARMONY_ASSIGN_OR_RETURN(client, ConnectToCoordinator(global, paths));
    // What this machine measures says nothing about another's devices.
    if (global.address.empty()) {
      HARMONY_RETURN_IF_ERROR(Calibrate(global, paths, options, *client, &request));
    } else if (options.recalibrate) {
      fprintf(stderr, "--recalibrate: nothing is measured here for a coordinator elsewhere\n");
    }
  }
  return client->Submit(request);
}

// Its id; NotFound when there are no jobs.
absl::StatusOr<std::string> FindJobToWatch(CoordinatorClient& client) {
  HARMONY_ASSIGN_OR_RETURN(const v1::ListResponse list, client.List({}));
  const v1::Job* const job = JobToWatch(list);
  if (job == nullptr) {
    return absl::NotFoundError("there are no jobs to watch: queue one with `harmony submit`");
  }
  return job->job_id();
}

// The last snapshot of the job, when it has ended.
absl::StatusOr<v1::Progress> Watch(const GlobalOptions& global, const RuntimePaths& paths,
                                   const std::string& job_id) {
  HARMONY_ASSIGN_OR_RETURN(auto client, ConnectToCoordinator(global, paths));
  v1::GetRequest request;
  request.set_job_id(job_id);
  if (job_id.empty()) {
    HARMONY_ASSIGN_OR_RETURN(*request.mutable_job_id(), FindJobToWatch(*client));
  }
  HARMONY_ASSIGN_OR_RETURN(v1::Job job, client->Get(request));
  auto view = MakeProgressView(global.json, LoggingStepsOf(job.job_yaml(), {}));
  if (job_id.empty()) view->Message(absl::StrCat("watching ", job.job_id()));
  FollowOptions follow;
  HARMONY_ASSIGN_OR_RETURN(follow.server, ResolveEndpoint(global, paths));
  follow.job_id = job.job_id();  // job_id may be empty, or a number only
  follow.patience = kCoordinatorPatience;
  JobFollower follower(std::move(follow));
  v1::Progress last;
  while (true) {
    pollfd wait = {follower.event_fd(), POLLIN, 0};
    if (poll(&wait, 1, -1) < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "waiting");
    for (const JobFollower::Event& event : follower.TakeEvents()) {
      if (!event.message.empty()) view->Message(event.message);
      if (event.progress) view->Show(last = *event.progress);
      if (!event.ended) continue;
      if (!event.ended->ok()) return *event.ended;
      return last;
    }
  }
}

}  // namespace

const v1::Job* JobToWatch(const v1::ListResponse& list) {
  const v1::Job* queued = nullptr;
  const v1::Job* newest = nullptr;
  const v1::Job* active = nullptr;
  for (const v1::Job& job : list.jobs()) {
    newest = &job;
    if (IsFinal(job.state())) continue;
    if (job.state() == v1::JOB_STATE_QUEUED) {
      if (queued == nullptr) queued = &job;
    } else {
      active = &job;  // an earlier one is of a coordinator that was killed
    }
  }
  if (active != nullptr) return active;
  return queued != nullptr ? queued : newest;
}

int SubmitCommand(const GlobalOptions& global, const JobOptions& options) {
  absl::StatusOr<RuntimePaths> paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return Fail(paths.status());
  absl::StatusOr<v1::SubmitResponse> response = Submit(global, *paths, options);
  if (!response.ok()) {
    int code = Fail(response.status());
    return absl::IsResourceExhausted(response.status()) ? 2 : code;
  }
  if (global.json) {
    PrintJson(ToJson(*response));
  } else if (response->already_finished()) {
    PrintFinishedBefore(stderr);  // standard output has the id of a job, or nothing
  } else {
    printf("%s\n", response->job_id().c_str());
  }
  return 0;
}

int ListCommand(const GlobalOptions& global) {
  const absl::Status status = List(global);
  return status.ok() ? 0 : Fail(status);
}

int StatusCommand(const GlobalOptions& global, const std::string& job_id) {
  absl::StatusOr<RuntimePaths> paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return Fail(paths.status());
  absl::Status status = job_id.empty() ? ShowAll(global, *paths) : ShowJob(global, *paths, job_id);
  return status.ok() ? 0 : Fail(status);
}

int WatchCommand(const GlobalOptions& global, const std::string& job_id) {
  absl::StatusOr<RuntimePaths> paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return Fail(paths.status());
  absl::StatusOr<v1::Progress> last = Watch(global, *paths, job_id);
  if (!last.ok()) return Fail(last.status());
  if (!global.json) {
    printf("%s %s\n", last->job().job_id().c_str(), StateName(last->job().state()).c_str());
  }
  if (last->job().state() == v1::JOB_STATE_FAILED) {
    const auto code = static_cast<absl::StatusCode>(last->job().error_code());
    Fail(absl::Status(code, last->job().error()));
  }
  return ExitCodeOfJob(last->job());
}

int CancelCommand(const GlobalOptions& global, const std::string& job_id) {
  return JobAction(global, job_id, &CoordinatorClient::Cancel);
}
int PauseCommand(const GlobalOptions& global, const std::string& job_id) {
  return JobAction(global, job_id, &CoordinatorClient::Pause);
}
int ResumeCommand(const GlobalOptions& global, const std::string& job_id) {
  return JobAction(global, job_id, &CoordinatorClient::Resume);
}

}  // namespace harmony::client
