#include "client/commands/run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/commands/calibration.h"
#include "client/commands/down.h"
#include "client/commands/output_file.h"
#include "client/commands/supervisor_process.h"
#include "client/commands/trace.h"
#include "client/launcher/launch.h"
#include "client/progress/render.h"
#include "client/progress/view.h"
#include "client/rpc/job_follower.h"
#include "client/rpc/proto_json.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/io/checkpoint_manifest.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

// How often a cancel is tried again while the coordinator is away.
constexpr int kCancelRetryMs = 500;
// A submission that takes longer than this is said to.
constexpr int kPlanningMs = 1500;

// Nothing of a job that is not known yet.
std::string WhereItGoesOn(const v1::Job& job) {
  if (job.output_dir().empty()) return "";
  const std::vector<int64_t> steps = io::ListCheckpoints(job.output_dir());
  if (steps.empty()) return " (it begins anew: there is no checkpoint)";
  return absl::StrCat(" (it goes on from ", job.output_dir(), "/",
                      io::CheckpointName(steps.front()), ")");
}

// One `harmony run` from start to end, on the main thread.
class RunSession {
 public:
  RunSession(const GlobalOptions& global, const RunOptions& options)
      : global_(global), options_(options) {}

  int Execute();

 private:
  absl::Status Prepare();
  absl::Status StartProcesses();
  absl::Status FollowJob();
  // Why, when it ended by itself.
  absl::Status SupervisorEnded();
  void OnEvent(JobFollower::Event& event);
  void OnSignal();
  void TryCancel();
  // While the coordinator still knows.
  void SaveTraceOfJob();
  // Ends the supervisor and all it started; a (second) signal meanwhile makes it quick.
  void StopProcesses();
  // Keeps the logs beside the results, removes the runtime directory that was made.
  void CleanUp();
  int Report(const absl::Status& status);
  int ReportJob();
  void PrintSummary();

  const GlobalOptions& global_;
  const RunOptions& options_;
  v1::SubmitRequest request_;
  RuntimePaths paths_;
  Cluster cluster_;
  ipc::UniqueFd signals_;
  // Jobs that were submitted before (JobRecord::submitted_at) are not ours.
  const std::string since_ = UtcTimeStamp();
  bool made_dir_ = false;  // and so removes it: a folder that the user named stays
  std::string kept_logs_;  // where they are after the end; empty: nowhere
  std::optional<SupervisorProcess> supervisor_;
  std::unique_ptr<ProgressView> view_;
  std::unique_ptr<JobFollower> follower_;

  int signal_ = 0;  // the first that came
  bool said_planning_ = false;
  bool warned_ = false;  // of what stopping at once would lose
  bool stop_at_once_ = false;
  bool cancelled_ = false;  // the coordinator has taken the cancel
  std::string job_id_;
  bool already_finished_ = false;
  bool submit_refused_ = false;
  absl::Status traced_;
  std::optional<absl::Status> ended_;
  RunSummary summary_;
  std::vector<double> rates_;  // of each step seen
  int64_t faults_before_ = 0;  // of the job's runs before (it may change its plan)
};

int RunSession::Execute() {
  // Training goes on when nobody reads what it shows any more.
  signal(SIGPIPE, SIG_IGN);
  absl::Status status = Prepare();
  if (status.ok()) status = StartProcesses();
  if (status.ok() && signal_ == 0) status = FollowJob();
  if (status.ok() && ended_ && !options_.trace.empty()) SaveTraceOfJob();
  follower_.reset();
  if (supervisor_) StopProcesses();
  CleanUp();
  return Report(status);
}

absl::Status RunSession::Prepare() {
  HARMONY_ASSIGN_OR_RETURN(request_, MakeSubmitRequest(options_.job));
  if (!options_.trace.empty()) {
    std::vector<std::string> inputs = FilesOf(options_.job, request_);
    inputs.push_back(options_.cluster.config);
    HARMONY_RETURN_IF_ERROR(CheckOutputFile("--trace", options_.trace, inputs));
  }
  HARMONY_ASSIGN_OR_RETURN(cluster_, ResolveClusterHere(global_, options_.cluster));
  std::vector<std::string> said;
  HARMONY_ASSIGN_OR_RETURN(
      const std::string profile,
      CalibratedProfile(global_, options_.job, request_, cluster_, CalibrateWhen::kIfWorthIt,
                        [&said](const std::string& text) { said.push_back(text); }));
  if (!profile.empty()) {
    request_.set_profile(profile);
    request_.set_profile_path(kCalibration);
  }
  signals_ = TakeOverSignals();
  std::string dir = global_.runtime_dir;
  if (dir.empty()) {
    HARMONY_ASSIGN_OR_RETURN(dir, MakePrivateRuntimeDir());
    made_dir_ = true;
  }
  paths_.dir = dir;
  HARMONY_ASSIGN_OR_RETURN(paths_, ResolveRuntimePaths(dir, global_.state_dir));
  if (RuntimeLockHolder(paths_) != 0) return RuntimeLock::Acquire(paths_).status();
  view_ = MakeProgressView(
      global_.json, LoggingStepsOf(request_.job_yaml(), options_.job.overrides), signals_.get());
  for (const std::string& text : said) view_->Message(text);
  if (cluster_.default_devices) {
    view_->Message(absl::StrCat("no --devices given: using ", DescribeDefault(cluster_)));
  }
  return absl::OkStatus();
}

absl::Status RunSession::StartProcesses() {
  std::string bin_dir = BinDir(global_);
  HARMONY_ASSIGN_OR_RETURN(supervisor_,
                           SupervisorProcess::Start({paths_, bin_dir, cluster_,
                                                     /*access=*/{},
                                                     /*bound_to_us=*/true,
                                                     /*remove_dir=*/made_dir_, since_}));
  while (signal_ == 0) {
    pollfd polled[] = {{signals_.get(), POLLIN, 0}, {supervisor_->report_fd(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "waiting");
    if (polled[0].revents != 0) OnSignal();
    if (polled[1].revents != 0) return supervisor_->TakeReport();
  }
  return absl::OkStatus();
}

absl::Status RunSession::FollowJob() {
  FollowOptions follow;
  follow.server = rpc::SocketEndpoint(paths_.socket());
  follow.submit = request_;
  follow.submitted_since = since_;
  follower_ = std::make_unique<JobFollower>(std::move(follow));
  while (!ended_ && !stop_at_once_) {
    bool cancel_pending = signal_ != 0 && !cancelled_;
    pollfd polled[] = {{signals_.get(), POLLIN, 0},
                       {follower_->event_fd(), POLLIN, 0},
                       {supervisor_->pidfd(), POLLIN, 0}};
    const bool tell = job_id_.empty() && !said_planning_;
    int ready = poll(polled, 3, cancel_pending ? kCancelRetryMs : tell ? kPlanningMs : -1);
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "waiting");
    if (ready == 0 && tell) {
      said_planning_ = true;
      view_->Message("planning: looking for the fastest way that fits");
    }
    if (polled[0].revents != 0) OnSignal();
    for (JobFollower::Event& event : follower_->TakeEvents()) OnEvent(event);
    if (!ended_ && polled[2].revents != 0) return SupervisorEnded();
    if (!ended_ && cancel_pending && !stop_at_once_) TryCancel();
  }
  return ended_.value_or(absl::OkStatus());
}

absl::Status RunSession::SupervisorEnded() {
  std::string message = absl::StrCat("the launcher stopped all; last lines of its log:\n",
                                     TailOfFile(paths_.logs() + "/supervisor.log", 30));
  return supervisor_->Wait() == 2 ? absl::InvalidArgumentError(message)
                                  : absl::InternalError(message);
}

void RunSession::OnEvent(JobFollower::Event& event) {
  if (!event.message.empty()) view_->Message(event.message);
  if (event.submitted) {
    job_id_ = event.submitted->job_id;
    already_finished_ = event.submitted->already_finished;
  }
  if (event.progress) {
    const v1::Progress& progress = *event.progress;
    if (progress.step() != summary_.last.step() && progress.tokens_per_second() > 0) {
      rates_.push_back(progress.tokens_per_second());
    }
    if (progress.faults() < summary_.last.faults()) faults_before_ += summary_.last.faults();
    summary_.restarts = std::max<int64_t>(summary_.restarts, faults_before_ + progress.faults());
    view_->Show(progress);
    summary_.last = progress;
  }
  if (event.ended) {
    ended_ = std::move(event.ended);
    submit_refused_ = event.submit_refused;
  }
}

void RunSession::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (signal_ == 0) {
      signal_ = static_cast<int>(info.ssi_signo);
      view_->Hurry();
      view_->Message(job_id_.empty() ? "stopping as soon as the job has been planned"
                                     : "stopping: the step in flight, then a checkpoint");
    } else if (const std::string loss = LossWithoutCheckpoint(summary_.last.job());
               !warned_ && !loss.empty()) {
      warned_ = true;
      view_->Message(absl::StrCat("still stopping; once more to stop at once, which loses ", loss));
    } else {
      stop_at_once_ = true;
    }
  }
}

void RunSession::TryCancel() {
  if (job_id_.empty()) return;
  v1::CancelRequest request;
  request.set_job_id(job_id_);
  absl::StatusOr<v1::Job> job =
      CoordinatorClient(rpc::SocketEndpoint(paths_.socket())).Cancel(request);
  // Anything but a lost connection is an answer; the follower sees what comes of it.
  cancelled_ = !absl::IsUnavailable(job.status()) && !absl::IsDeadlineExceeded(job.status());
}

void RunSession::SaveTraceOfJob() {
  if (already_finished_) {
    return view_->Message("no trace: nothing was run");
  }
  CoordinatorClient client(rpc::SocketEndpoint(paths_.socket()));
  const absl::StatusOr<SavedTrace> trace =
      SaveTrace(client, {.job_id = job_id_, .output = options_.trace});
  traced_ = trace.status();
  if (trace.ok()) view_->Message(Describe(*trace, options_.trace));
}

void RunSession::StopProcesses() {
  supervisor_->Signal(stop_at_once_ ? SIGQUIT : SIGTERM);
  while (supervisor_->pidfd() >= 0) {  // it may have been waited for before
    pollfd polled[] = {{supervisor_->pidfd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) break;
    if (polled[0].revents != 0) break;
    if (polled[1].revents == 0) continue;
    OnSignal();
    if (stop_at_once_) supervisor_->Signal(SIGQUIT);
  }
  supervisor_->Wait();
}

void RunSession::CleanUp() {
  std::error_code error;
  const std::string& output = summary_.last.job().output_dir();
  if (!made_dir_) {
    kept_logs_ = paths_.logs();
    return;
  }
  if (!output.empty() && fs::is_directory(output, error)) {
    fs::copy(paths_.logs(), output + "/logs",
             fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
    if (!error) kept_logs_ = output + "/logs";
  }
  fs::remove_all(paths_.dir, error);
}

void RunSession::PrintSummary() {
  if (!rates_.empty()) {
    auto middle = rates_.begin() + static_cast<int64_t>(rates_.size() / 2);
    std::nth_element(rates_.begin(), middle, rates_.end());
    summary_.tokens_per_second = *middle;
  }
  if (global_.json) {
    nlohmann::ordered_json line;
    line["type"] = "summary";
    line["tokens_per_second_median"] = summary_.tokens_per_second;
    line["restarts"] = summary_.restarts;
    if (!already_finished_) line["last"] = ToJson(summary_.last);  // else nothing was run
    line["already_finished"] = already_finished_;
    printf("%s\n", line.dump().c_str());
  } else if (summary_.last.has_job()) {
    printf("%s", RenderSummary(summary_).c_str());
  }
}

int RunSession::ReportJob() {
  const v1::Job& job = summary_.last.job();
  if (already_finished_) {
    if (!global_.json) PrintFinishedBefore(stdout);
    return 0;
  }
  if (job.state() == v1::JOB_STATE_FAILED) {
    std::string why = job.error();
    if (!kept_logs_.empty()) absl::StrAppend(&why, "\nlogs: ", kept_logs_);
    Fail(absl::Status(static_cast<absl::StatusCode>(job.error_code()), why));
    return ExitCodeOfJob(job);
  }
  if (job.state() == v1::JOB_STATE_FINISHED) return 0;
  if (signal_ == 0) {  // by another command
    return Fail(absl::CancelledError(absl::StrCat(job.job_id(), " is ", StateName(job.state()),
                                                  ", after step ", summary_.last.step())));
  }
  if (!global_.json) {
    printf("\nstopped after step %ld; to resume, give the same command again%s\n",
           static_cast<long>(summary_.last.step()), WhereItGoesOn(job).c_str());
  }
  return 128 + signal_;
}

int RunSession::Report(const absl::Status& status) {
  int exit_code = 0;
  if (stop_at_once_) {
    fprintf(stderr, "stopped at once; to resume, give the same command again%s\n",
            WhereItGoesOn(summary_.last.job()).c_str());
    exit_code = 128 + signal_;
  } else if (signal_ != 0 && !ended_) {
    exit_code = 128 + signal_;
  } else if (!status.ok()) {
    exit_code = Fail(status);
    // Too little memory, found before anything ran, is a matter of the input.
    if (submit_refused_ && absl::IsResourceExhausted(status)) exit_code = 2;
  } else {
    PrintSummary();
    exit_code = ReportJob();
    if (!traced_.ok()) {
      const int failed = Fail(traced_);
      if (exit_code == 0) exit_code = failed;
    }
  }
  fflush(stdout);
  return exit_code;
}

}  // namespace

int RunCommand(const GlobalOptions& global, const RunOptions& options) {
  return RunSession(global, options).Execute();
}

}  // namespace harmony::client
