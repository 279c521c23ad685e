#include "common/runtime/attached_process.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"
#include "common/rpc/attach_client.h"
#include "common/rpc/command_codec.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::runtime {
namespace {

v1::Role RoleToWire(AttachedRole role) {
  switch (role) {
    case AttachedRole::kSwapper:
      return v1::ROLE_SWAPPER;
    case AttachedRole::kHostWorker:
      return v1::ROLE_HOST_WORKER;
    case AttachedRole::kWorker:
      return v1::ROLE_WORKER;
  }
  return v1::ROLE_UNSPECIFIED;
}

absl::StatusOr<AttachedJob> DecodeJob(const v1::JobSetup& setup) {
  AttachedJob job;
  job.id = setup.job_id();
  job.job_json = setup.job_json();
  job.config_json = setup.model_config_json();
  HARMONY_ASSIGN_OR_RETURN(job.spec, job::JobSpecFromJson(setup.job_json(), "job"));
  HARMONY_ASSIGN_OR_RETURN(job.architecture,
                           model::ParseArchitecture(setup.model_config_json(), "model"));
  HARMONY_ASSIGN_OR_RETURN(job.plan, rpc::ParsePlan(setup.plan()));
  HARMONY_ASSIGN_OR_RETURN(job.model,
                           job::ModelOf(job.architecture, job.spec, job.plan.gradient_dtype));
  job.resume_checkpoint = setup.resume_checkpoint();
  job.first_step = setup.first_step();
  return job;
}

v1::FromProcess ProgressMessage(const LaneReport& report) {
  v1::FromProcess message;
  v1::LaneProgress* progress = message.mutable_progress();
  progress->set_generation(report.generation);
  progress->set_lane(report.lane);
  progress->set_value(report.completed.back().value);
  for (const CompletedCommand& completed : report.completed) {
    v1::CommandTiming* timing = progress->add_timings();
    timing->set_value(completed.value);
    timing->set_start_ns(completed.start.count());
    timing->set_end_ns(completed.end.count());
    timing->set_received_ns(completed.received.count());
  }
  return message;
}

v1::FromProcess FailureMessage(uint32_t generation, uint32_t lane, uint64_t value,
                               const absl::Status& failure) {
  v1::FromProcess message;
  v1::CommandFailed* failed = message.mutable_failed();
  failed->set_generation(generation);
  failed->set_lane(lane);
  failed->set_value(value);
  failed->set_code(static_cast<int32_t>(failure.code()));
  failed->set_message(std::string(failure.message()));
  return message;
}

}  // namespace

void FillProcessStats(v1::DeviceStats* stats) {
  std::ifstream statm("/proc/self/statm");
  int64_t pages_mapped = 0, pages_resident = 0;
  if (statm >> pages_mapped >> pages_resident) {
    stats->set_process_rss(pages_resident * sysconf(_SC_PAGESIZE));
  }
}

class AttachedProcess::Impl {
 public:
  Impl(AttachedOptions options, std::vector<LaneDefinition> lanes, LaneSemaphores* semaphores,
       AttachedHandler* handler, std::function<void(const absl::Status&)> on_refused)
      : options_(std::move(options)),
        handler_(handler),
        first_lane_(lanes.empty() ? 0 : lanes.front().lane),
        client_(options_.socket_path, Callbacks(std::move(on_refused))),
        executor_(std::move(lanes), semaphores,
                  [this](const std::vector<LaneReport>& reports) { SendReports(reports); }) {}
  ~Impl() { Stop(); }

  void Start() {
    if (options_.pulse != nullptr) options_.pulse->EndWork();
    client_.Start();
    stats_thread_ = std::thread([this] { SendStats(); });
  }

  void Stop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    stop_.NotifyAll();
    if (stats_thread_.joinable()) stats_thread_.join();
    client_.Shutdown();  // no message is handled after this
    Quiesce();           // so this thread may
  }

 private:
  void Quiesce() {
    // Who asked for it may die meanwhile, and nobody else would know. What runs is thrown away
    // afterwards, so it is no loss to die of taking too long.
    const UnwatchedWork letting_go(options_.pulse);
    executor_.Cancel();
    handler_->Cancel();
    executor_.Quiesce();
  }

  rpc::AttachCallbacks Callbacks(std::function<void(const absl::Status&)> on_refused) {
    rpc::AttachCallbacks callbacks;
    callbacks.hello = [this](v1::Hello* hello) { FillHello(hello); };
    callbacks.on_message = [this](const v1::ToProcess& message) { OnMessage(message); };
    callbacks.on_lost = [this] {
      spdlog::warn("the coordinator is gone: dropping what is queued, dialling again");
      Quiesce();
    };
    callbacks.on_refused = [this, on_refused = std::move(on_refused)](const absl::Status& status) {
      Quiesce();
      on_refused(status);
    };
    return callbacks;
  }

  void FillHello(v1::Hello* hello) {
    hello->set_role(RoleToWire(options_.role));
    hello->set_device(options_.device);
    hello->set_incarnation(options_.incarnation);
    hello->set_own_deaths(options_.own_deaths);
    hello->set_computes_on(options_.computes_on);
    hello->set_pid(getpid());
    hello->set_generation(last_generation_);
  }

  void OnMessage(const v1::ToProcess& message) {
    switch (message.message_case()) {
      case v1::ToProcess::kWelcome:
        return OnWelcome(message.welcome());
      case v1::ToProcess::kJob:
        return OnJob(message.job());
      case v1::ToProcess::kQuiesce:
        return OnQuiesce(message.quiesce().generation());
      case v1::ToProcess::kStart:
        return OnStart(message.start().generation());
      case v1::ToProcess::kCommands:
        return OnCommands(message.commands());
      case v1::ToProcess::kJobEnd:
        return OnJobEnd(message.job_end().job_id());
      case v1::ToProcess::MESSAGE_NOT_SET:
        spdlog::warn("a message of an unknown kind was dropped");
    }
  }

  void OnJobEnd(const std::string& job_id) {
    spdlog::info("job {} has ended", job_id);
    Quiesce();
    SendStatsOnce();  // the job's last word on its peaks
    const UnwatchedWork ending(options_.pulse);
    handler_->EndJob();
  }

  void OnWelcome(const v1::Welcome& welcome) {
    spdlog::info("attached to the coordinator");
    if (welcome.num_devices() != options_.num_devices) {
      spdlog::error("the coordinator has {} devices, this process was started for {}",
                    welcome.num_devices(), options_.num_devices);
    }
  }

  void OnJob(const v1::JobSetup& setup) {
    Quiesce();
    const UnwatchedWork setting_up(options_.pulse);
    absl::Status status;
    if (absl::StatusOr<AttachedJob> job = DecodeJob(setup); job.ok()) {
      if (static_cast<int>(job->plan.devices.size()) != options_.num_devices) {
        status = absl::InvalidArgumentError(
            absl::StrCat("the plan has ", job->plan.devices.size(), " devices, there are ",
                         options_.num_devices, "; submit the job again for a new plan"));
      } else {
        status = handler_->SetUpJob(*job);
      }
    } else {
      status = job.status();
    }
    spdlog::info("job {}: {}", setup.job_id(), status.ok() ? "ready" : status.ToString());
    v1::FromProcess answer;
    answer.mutable_job_ready()->set_job_id(setup.job_id());
    answer.mutable_job_ready()->set_code(static_cast<int32_t>(status.code()));
    answer.mutable_job_ready()->set_message(std::string(status.message()));
    client_.Send(std::move(answer));
  }

  void OnQuiesce(uint32_t generation) {
    Quiesce();
    spdlog::debug("quiet for generation {}", generation);
    v1::FromProcess answer;
    answer.mutable_quiesced()->set_generation(generation);
    client_.Send(std::move(answer));
  }

  void OnStart(uint32_t generation) {
    const UnwatchedWork preparing(options_.pulse);
    absl::Status status = handler_->PrepareGeneration();
    if (status.ok()) status = executor_.StartGeneration(generation);
    if (status.ok()) {
      last_generation_ = generation;
      spdlog::debug("generation {} starts", generation);
    } else if (!absl::IsFailedPrecondition(status)) {
      FailGeneration(generation, status);
    } else {
      spdlog::warn("dropped: {}", status.ToString());
    }
  }

  void OnCommands(const v1::Commands& commands) {
    if (commands.generation() != executor_.generation()) {
      spdlog::debug("{} commands of generation {} dropped", commands.commands_size(),
                    commands.generation());
      return;
    }
    std::vector<command::Command> decoded;
    decoded.reserve(static_cast<size_t>(commands.commands_size()));
    for (const v1::Command& wire : commands.commands()) {
      absl::StatusOr<command::Command> command = rpc::DecodeCommand(wire);
      if (!command.ok()) {
        FailGeneration(commands.generation(), command.status());
        break;
      }
      decoded.push_back(*std::move(command));
    }
    executor_.Enqueue(commands.generation(), std::move(decoded));
  }

  // What concerns no command that a lane has: reported on the first lane.
  void FailGeneration(uint32_t generation, const absl::Status& failure) {
    spdlog::error("generation {}: {}", generation, failure.ToString());
    client_.Send(FailureMessage(generation, first_lane_, 0, failure));
  }

  void SendReports(const std::vector<LaneReport>& reports) {
    for (const LaneReport& report : reports) {
      if (!report.completed.empty()) client_.Send(ProgressMessage(report));
      if (!report.failure.ok()) {
        spdlog::error("{}", report.failure.ToString());
        client_.Send(
            FailureMessage(report.generation, report.lane, report.failed_value, report.failure));
      }
    }
  }

  void SendStats() {
    const std::chrono::nanoseconds interval(options_.stats_interval.count());
    while (SleepUnlessStopped(interval)) {
      handler_->Observe();
      SendStatsOnce();
    }
  }

  // False: Stop has been called.
  bool SleepUnlessStopped(std::chrono::nanoseconds interval) {
    const CondVar::Time deadline = CondVar::After(interval);
    MutexLock lock(mutex_);
    while (!stopping_ && stop_.WaitUntil(mutex_, deadline)) {
    }
    return !stopping_;
  }

  void SendStatsOnce() {
    v1::FromProcess message;
    handler_->FillStats(message.mutable_stats());
    client_.Send(std::move(message));
  }

  const AttachedOptions options_;
  AttachedHandler* const handler_;
  const uint32_t first_lane_;     // failures of set-ups are told as its; a process may have none
  uint32_t last_generation_ = 0;  // stream's thread only
  rpc::AttachClient client_;
  LaneExecutor executor_;  // destroyed before the client that its reports go to

  Mutex mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread stats_thread_;
};

AttachedProcess::AttachedProcess(AttachedOptions options, std::vector<LaneDefinition> lanes,
                                 LaneSemaphores* semaphores, AttachedHandler* handler,
                                 std::function<void(const absl::Status&)> on_refused)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(lanes), semaphores, handler,
                                   std::move(on_refused))) {}
AttachedProcess::~AttachedProcess() = default;
void AttachedProcess::Start() { impl_->Start(); }
void AttachedProcess::Stop() { impl_->Stop(); }

}  // namespace harmony::runtime
