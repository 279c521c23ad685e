#include "client/rpc/coordinator_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "harmony/v1/coordinator.grpc.pb.h"

namespace harmony::client {
namespace {

// Submitting and resuming check model and data, which may be large, and plan; a timeline is
// simulated; all at a low priority. All else answers at once.
constexpr std::chrono::seconds kSlowDeadline(300);
constexpr std::chrono::seconds kCallDeadline(10);
// Before asking a coordinator again that has been asked too often.
constexpr std::chrono::milliseconds kPause(300);

// Whether a message is gRPC's own, of a connection that does not come about or ends.
bool IsOfConnection(absl::string_view message) {
  for (const char* words : {"failed to connect", "ocket closed", "onnection reset", "roken pipe",
                            "GOAWAY", "empty address list", "recvmsg"}) {
    if (absl::StrContains(message, words)) return true;
  }
  return false;
}

// Our words in the place of gRPC's; of a TLS connection before them, for they say what it lacks.
absl::Status Explained(const absl::Status& status, const rpc::Endpoint& endpoint,
                       std::chrono::seconds deadline) {
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat("the coordinator at ", endpoint.name(),
                                                    " has not answered for ", deadline.count(),
                                                    " s: it was stopped, or is very busy"));
  }
  if (!absl::IsUnavailable(status)) return status;
  if (!endpoint.remote()) {
    if (!IsOfConnection(status.message())) return status;
    return absl::UnavailableError(absl::StrCat(
        "the coordinator at ", endpoint.name(),
        " does not answer: it has ended, or is being started again (`harmony list` says which)"));
  }
  absl::string_view why = "is a coordinator up there, with --listen?";
  const std::string text = absl::AsciiStrToLower(status.message());
  if (absl::StrContains(text, "certificate verify failed") ||
      absl::StrContains(text, "certificate_verify_failed")) {
    why = "its certificate is not signed by --tls-ca, or has expired";
  } else if (absl::StrContains(text, "hostname verification") ||
             absl::StrContains(text, "peer name")) {
    why = "its certificate is not for this host name: give --address as the certificate has it";
  } else if (absl::StrContains(text, "handshake") || absl::StrContains(text, "socket closed") ||
             absl::StrContains(text, "reset by peer")) {
    why =
        "it closed the connection: it does not take our certificate (is it signed by what it has "
        "as --tls-client-ca?), or has too many connections";
  }
  return absl::UnavailableError(
      absl::StrCat("no answer from ", endpoint.address, ": ", why, " (", status.message(), ")"));
}

}  // namespace

struct CoordinatorClient::Impl {
  explicit Impl(rpc::Endpoint server)
      : endpoint(std::move(server)), stub(v1::Coordinator::NewStub(rpc::MakeChannel(endpoint))) {}

  template <typename Response, typename Request, typename Method>
  absl::StatusOr<Response> Call(Method method, const Request& request,
                                std::chrono::seconds deadline = kCallDeadline) {
    if (request.ByteSizeLong() > rpc::kMostRequestBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the job file, with the profile and the plan that go with it, has ",
          request.ByteSizeLong(), " bytes; a coordinator takes at most ", rpc::kMostRequestBytes));
    }
    const auto until = std::chrono::system_clock::now() + deadline;
    for (;;) {
      grpc::ClientContext context;
      context.set_deadline(until);
      Response response;
      const absl::Status status =
          rpc::FromGrpcStatus((stub.get()->*method)(&context, request, &response));
      if (status.ok()) return response;
      if (!rpc::IsTooManyCalls(status) || std::chrono::system_clock::now() + kPause > until) {
        return Explained(status, endpoint, deadline);
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  const rpc::Endpoint endpoint;
  std::unique_ptr<v1::Coordinator::Stub> stub;
  Mutex mutex;
  std::shared_ptr<grpc::ClientContext> watching ABSL_GUARDED_BY(mutex);
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

CoordinatorClient::CoordinatorClient(rpc::Endpoint endpoint)
    : impl_(std::make_unique<Impl>(std::move(endpoint))) {}
CoordinatorClient::~CoordinatorClient() = default;

using Stub = v1::Coordinator::Stub;

absl::StatusOr<v1::SubmitResponse> CoordinatorClient::Submit(const v1::SubmitRequest& request) {
  return impl_->Call<v1::SubmitResponse>(&Stub::Submit, request, kSlowDeadline);
}
absl::StatusOr<v1::Job> CoordinatorClient::Get(const v1::GetRequest& request) {
  return impl_->Call<v1::Job>(&Stub::Get, request);
}
absl::StatusOr<v1::ListResponse> CoordinatorClient::List(const v1::ListRequest& request) {
  return impl_->Call<v1::ListResponse>(&Stub::List, request);
}
absl::StatusOr<v1::Job> CoordinatorClient::Cancel(const v1::CancelRequest& request) {
  return impl_->Call<v1::Job>(&Stub::Cancel, request);
}
absl::StatusOr<v1::Job> CoordinatorClient::Pause(const v1::PauseRequest& request) {
  return impl_->Call<v1::Job>(&Stub::Pause, request);
}
absl::StatusOr<v1::Job> CoordinatorClient::Resume(const v1::ResumeRequest& request) {
  return impl_->Call<v1::Job>(&Stub::Resume, request, kSlowDeadline);
}
absl::StatusOr<v1::PruneResponse> CoordinatorClient::Prune(const v1::PruneRequest& request) {
  return impl_->Call<v1::PruneResponse>(&Stub::Prune, request);
}
absl::StatusOr<v1::PlanResponse> CoordinatorClient::Plan(const v1::PlanRequest& request) {
  return impl_->Call<v1::PlanResponse>(&Stub::Plan, request, kSlowDeadline);
}
absl::StatusOr<v1::Timeline> CoordinatorClient::GetTimeline(const v1::GetTimelineRequest& request) {
  return impl_->Call<v1::Timeline>(&Stub::GetTimeline, request, kSlowDeadline);
}

absl::StatusOr<v1::GetLogResponse> CoordinatorClient::GetLog(const v1::GetLogRequest& request) {
  return impl_->Call<v1::GetLogResponse>(&Stub::GetLog, request);
}

absl::Status CoordinatorClient::Watch(const v1::WatchRequest& request,
                                      const std::function<bool(const v1::Progress&)>& on_progress) {
  const auto context = std::make_shared<grpc::ClientContext>();
  {
    MutexLock lock(impl_->mutex);
    if (impl_->stopped) return absl::CancelledError("stopped watching");
    impl_->watching = context;
  }
  auto reader = impl_->stub->Watch(context.get(), request);
  v1::Progress progress;
  while (reader->Read(&progress)) {
    if (!on_progress(progress)) {
      context->TryCancel();
      break;
    }
  }
  grpc::Status status = reader->Finish();
  MutexLock lock(impl_->mutex);
  impl_->watching = nullptr;
  return Explained(rpc::FromGrpcStatus(status), impl_->endpoint, kCallDeadline);
}

void CoordinatorClient::StopWatching() {
  std::shared_ptr<grpc::ClientContext> watching;
  {
    MutexLock lock(impl_->mutex);
    impl_->stopped = true;
    watching = impl_->watching;
  }
  if (watching != nullptr) watching->TryCancel();
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_FINISHED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED || state == v1::JOB_STATE_PAUSED;
}

std::string StateName(v1::JobState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

}  // namespace harmony::client
