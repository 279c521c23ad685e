#pragma once

// Calls to a coordinator, with our own status at the end of each.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/channel.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::client {

// Thread-safe. Every call has a deadline; a coordinator that is not there is Unavailable. One that
// wants fewer calls is asked again until the deadline.
class CoordinatorClient {
 public:
  explicit CoordinatorClient(rpc::Endpoint endpoint);
  ~CoordinatorClient();

  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitRequest& request);
  absl::StatusOr<v1::Job> Get(const v1::GetRequest& request);
  absl::StatusOr<v1::ListResponse> List(const v1::ListRequest& request);
  absl::StatusOr<v1::Job> Cancel(const v1::CancelRequest& request);
  absl::StatusOr<v1::Job> Pause(const v1::PauseRequest& request);
  absl::StatusOr<v1::Job> Resume(const v1::ResumeRequest& request);
  absl::StatusOr<v1::PruneResponse> Prune(const v1::PruneRequest& request);
  absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request);
  absl::StatusOr<v1::Timeline> GetTimeline(const v1::GetTimelineRequest& request);
  absl::StatusOr<v1::GetLogResponse> GetLog(const v1::GetLogRequest& request);

  // Calls back for each snapshot until the stream ends, or the callback returns false.
  absl::Status Watch(const v1::WatchRequest& request,
                     const std::function<bool(const v1::Progress&)>& on_progress);
  // Makes a running Watch, and every later one, return. From any thread.
  void StopWatching();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// True for states that a job does not leave by itself.
bool IsFinal(v1::JobState state);
// "running", "finished", ...
std::string StateName(v1::JobState state);

}  // namespace harmony::client
