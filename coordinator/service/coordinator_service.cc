#include "coordinator/service/coordinator_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "coordinator/service/background_work.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/jobs/admission.h"
#include "coordinator/service/jobs/plan_anew.h"
#include "coordinator/service/mailbox.h"
#include "harmony/v1/coordinator.grpc.pb.h"

namespace harmony::service {
namespace {

constexpr int64_t kDefaultWatchInterval = 500;
constexpr int64_t kShortestWatchInterval = 20;
constexpr std::chrono::milliseconds kWatchPatience{200};
constexpr char kStopping[] = "the coordinator is stopping";

// On the wire Unavailable says that nobody answers, and who asked asks again. A file that cannot be
// read is an answer.
grpc::Status OnWire(const absl::Status& status) {
  if (!absl::IsUnavailable(status) || status.message() == kStopping) {
    return rpc::ToGrpcStatus(status);
  }
  return rpc::ToGrpcStatus(absl::FailedPreconditionError(status.message()));
}

template <typename Request>
JobRequest RequestOf(const Request& wire, bool remote) {
  JobRequest request;
  request.absolute_paths_only = remote;
  request.yaml = wire.job_yaml();
  request.path = wire.job_path().empty() ? "job.yaml" : wire.job_path();
  request.overrides.assign(wire.overrides().begin(), wire.overrides().end());
  request.working_directory = wire.working_directory();
  request.profile = wire.profile();
  request.profile_path = wire.profile_path().empty() ? "profile" : wire.profile_path();
  request.plan = wire.plan();
  request.plan_path = wire.plan_path().empty() ? "plan" : wire.plan_path();
  return request;
}

class CoordinatorService : public v1::Coordinator::Service {
 public:
  CoordinatorService(Coordinator* coordinator, Mailbox* mailbox, BackgroundWork* background,
                     bool remote)
      : coordinator_(coordinator), mailbox_(mailbox), remote_(remote), background_(background) {}

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* wire,
                      v1::SubmitResponse* response) override {
    return InBackground([&] { return DoSubmit(*wire, response); });
  }

  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest* request, v1::Job* job) override {
    return AboutJob(job, [&] { return Found(request->job_id()); });
  }
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                      v1::Job* job) override {
    return AboutJob(job, [&] { return coordinator_->Cancel(request->job_id()); });
  }
  grpc::Status Pause(grpc::ServerContext*, const v1::PauseRequest* request, v1::Job* job) override {
    return AboutJob(job, [&] { return coordinator_->Pause(request->job_id()); });
  }
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                      v1::Job* job) override {
    absl::StatusOr<store::JobRecord> ready = absl::UnknownError("not looked at");
    grpc::Status status = InBackground([&] {
      ready = ReadyToResume(request->job_id());
      return ready.status();
    });
    if (!status.ok()) return status;
    return AboutJob(job, [&] { return coordinator_->Resume(request->job_id(), *ready); });
  }

  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*,
                    v1::ListResponse* response) override {
    return OnLoop([&] {
      for (const auto& [number, record] : coordinator_->registry().jobs()) {
        FillJob(record, response->add_jobs());
      }
      return absl::OkStatus();
    });
  }

  grpc::Status Plan(grpc::ServerContext*, const v1::PlanRequest* wire,
                    v1::PlanResponse* response) override {
    return InBackground([&] { return DoPlan(*wire, response); });
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Progress>* writer) override {
    const int64_t interval = request->interval_ms() <= 0
                                 ? kDefaultWatchInterval
                                 : std::max(request->interval_ms(), kShortestWatchInterval);
    auto stream = std::make_shared<ProgressStream>();
    grpc::Status status =
        OnLoop([&] { return coordinator_->Watch(request->job_id(), Millis(interval), stream); });
    while (status.ok() && !stream->ended() && !context->IsCancelled()) {
      const std::unique_ptr<v1::Progress> progress = stream->Take(kWatchPatience);
      if (progress != nullptr && !writer->Write(*progress)) break;
    }
    stream->Abandon();
    return status;
  }

  grpc::Status GetTimeline(grpc::ServerContext*, const v1::GetTimelineRequest* request,
                           v1::Timeline* timeline) override {
    RecordedTimeline recorded;
    grpc::Status status = OnLoop([&]() -> absl::Status {
      HARMONY_ASSIGN_OR_RETURN(recorded,
                               coordinator_->TimelineOf(request->job_id(), request->last_steps()));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return InBackground([&] {
      FillTimeline(recorded, timeline);
      return absl::OkStatus();
    });
  }

  grpc::Status GetLog(grpc::ServerContext*, const v1::GetLogRequest* request,
                      v1::GetLogResponse* response) override {
    return OnLoop([&]() -> absl::Status {
      HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const record,
                               coordinator_->registry().Find(request->job_id()));
      HARMONY_ASSIGN_OR_RETURN(const std::vector<store::JobLogLine> lines,
                               coordinator_->registry().ReadLog(*record));
      for (const store::JobLogLine& line : lines) {
        v1::LogLine* out = response->add_lines();
        out->set_time(line.time);
        out->set_text(line.text);
      }
      return absl::OkStatus();
    });
  }

  grpc::Status Prune(grpc::ServerContext*, const v1::PruneRequest* request,
                     v1::PruneResponse* response) override {
    return OnLoop([&]() -> absl::Status {
      HARMONY_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                               coordinator_->Prune(request->ended_before()));
      response->mutable_job_ids()->Assign(ids.begin(), ids.end());
      return absl::OkStatus();
    });
  }

 private:
  // Runs `question` on the loop.
  absl::Status Ask(const std::function<absl::Status()>& question) {
    absl::Status status;
    if (!mailbox_->Ask([&] { status = question(); })) {
      return absl::UnavailableError(kStopping);
    }
    return status;
  }
  grpc::Status InBackground(const std::function<absl::Status()>& work) {
    return OnWire(background_->Run(work));
  }
  grpc::Status OnLoop(const std::function<absl::Status()>& question) {
    return OnWire(Ask(question));
  }
  grpc::Status AboutJob(v1::Job* job,
                        const std::function<absl::StatusOr<const store::JobRecord*>()>& question) {
    return OnLoop([&]() -> absl::Status {
      HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const record, question());
      FillJob(*record, job);
      return absl::OkStatus();
    });
  }
  absl::StatusOr<const store::JobRecord*> Found(const std::string& id) {
    HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const record,
                             coordinator_->registry().Find(id));
    return record;
  }

  // Searching a plan takes seconds: here, not on the loop.
  absl::StatusOr<store::JobRecord> ReadyToResume(const std::string& id) {
    store::JobRecord record;
    HARMONY_RETURN_IF_ERROR(Ask([&]() -> absl::Status {
      HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const found,
                               coordinator_->registry().Find(id));
      record = *found;
      return absl::OkStatus();
    }));
    if (record.state != store::JobState::kPaused) return record;
    HARMONY_ASSIGN_OR_RETURN(const HostLimits limits, Limits());
    HARMONY_RETURN_IF_ERROR(MakeReadyToResume(coordinator_->machine(), limits, &record));
    return record;
  }

  absl::StatusOr<HostLimits> Limits() {
    HostLimits limits;
    HARMONY_RETURN_IF_ERROR(Ask([&] {
      limits = coordinator_->Limits();
      return absl::OkStatus();
    }));
    return limits;
  }

  absl::Status DoSubmit(const v1::SubmitRequest& wire, v1::SubmitResponse* response) {
    JobRequest request = RequestOf(wire, remote_);
    request.overwrite = wire.overwrite();
    HARMONY_ASSIGN_OR_RETURN(const HostLimits limits, Limits());
    HARMONY_ASSIGN_OR_RETURN(AdmittedJob admitted,
                             AdmitJob(request, coordinator_->machine(), limits));
    if (admitted.output.finished) {
      response->set_already_finished(true);
      return absl::OkStatus();
    }
    return Ask([&]() -> absl::Status {
      HARMONY_ASSIGN_OR_RETURN(const std::string id,
                               coordinator_->Enqueue(std::move(admitted), wire.job_yaml()));
      response->set_job_id(id);
      return absl::OkStatus();
    });
  }

  absl::Status DoPlan(const v1::PlanRequest& wire, v1::PlanResponse* response) {
    HARMONY_ASSIGN_OR_RETURN(HostLimits limits, Limits());
    plan::MachineSpec machine = coordinator_->machine();
    if (!wire.devices().empty()) {
      HARMONY_ASSIGN_OR_RETURN(machine.devices, plan::ParseDevices(wire.devices()));
    }
    JobRequest request = RequestOf(wire, remote_);
    request.explain = wire.explain();
    HARMONY_ASSIGN_OR_RETURN(const AdmittedJob admitted, PlanJob(request, machine, limits));
    response->set_text(admitted.plan_text);
    response->set_json(admitted.plan_json);
    return absl::OkStatus();
  }

  Coordinator* const coordinator_;
  Mailbox* const mailbox_;
  const bool remote_;
  BackgroundWork* const background_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(Coordinator* coordinator, Mailbox* mailbox,
                                                      BackgroundWork* background, bool remote) {
  return std::make_unique<CoordinatorService>(coordinator, mailbox, background, remote);
}

}  // namespace harmony::service
