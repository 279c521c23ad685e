#pragma once

// Follows one job through everything, coordinator restarts included.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/rpc/coordinator_client.h"
#include "common/base/mutex.h"
#include "common/base/units.h"
#include "common/ipc/fd_passing.h"

namespace harmony::client {

// Whether the coordinator, or the connection to it, went away; nothing is said about the job.
bool IsConnectionLoss(const absl::Status& status);

// How long a coordinator may be away while it is replaced. One that hangs is found after 30 s.
inline constexpr Nanos kCoordinatorPatience = Seconds(90);

struct FollowOptions {
  rpc::Endpoint server;
  // Submit this first; or follow a job there is.
  std::optional<v1::SubmitRequest> submit;
  // With `submit`: jobs from before this time (RFC 3339, UTC) are not taken for the submitted one.
  std::string submitted_since;
  std::string job_id;
  int64_t interval_ms = 500;
  // How long a coordinator may be away before following ends with Unavailable; nothing: for ever
  // (somebody else sees to it that it comes back).
  std::optional<Nanos> patience;
};

// One thread of its own talks to the coordinator; the owner's thread polls event_fd() and takes
// events. All methods are for the owner's thread.
class JobFollower {
 public:
  struct Submitted {
    std::string job_id;
    bool already_finished = false;
  };
  struct Event {
    std::optional<Submitted> submitted;
    std::optional<v1::Progress> progress;
    std::string message;                // for the user; empty: none
    std::optional<absl::Status> ended;  // the last event: OK when the job is in a final state (seen
                                        // in the last progress), or was already finished
    bool submit_refused = false;        // with `ended`: it was Submit that failed
  };

  explicit JobFollower(FollowOptions options);
  ~JobFollower();  // stops following; the job goes on
  JobFollower(const JobFollower&) = delete;
  JobFollower& operator=(const JobFollower&) = delete;

  // Readable when there are events.
  int event_fd() const { return event_fd_.get(); }
  std::vector<Event> TakeEvents();

 private:
  void Run();
  // Nothing: the answer got lost with the coordinator; try again.
  std::optional<absl::Status> TrySubmit();
  std::optional<absl::Status> TryWatch();
  void Push(Event event);
  // Waits a little before the next try. False: stop, or patience is over.
  bool WaitForCoordinator();

  FollowOptions options_;
  ipc::UniqueFd event_fd_;
  CoordinatorClient client_;
  // Used by the thread only.
  bool submitting_ = false, submit_was_sent_ = false, said_lost_ = false;
  bool busy_ = false;  // it was not lost, it has too much to do
  std::optional<Nanos> lost_since_;

  Mutex mutex_;
  CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace harmony::client
