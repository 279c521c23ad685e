#include "coordinator/store/job_record.h"

namespace harmony::store {

const char* ToString(JobState state) {
  static constexpr const char* kNames[] = {"unspecified", "queued",    "starting", "running",
                                           "recovering",  "stopping",  "paused",   "finished",
                                           "failed",      "cancelled", "waiting"};
  return kNames[static_cast<int>(state)];
}

bool IsActive(JobState state) {
  return (state >= JobState::kStarting && state <= JobState::kStopping) ||
         state == JobState::kWaiting;
}
bool IsEnded(JobState state) {
  return state >= JobState::kFinished && state <= JobState::kCancelled;
}

}  // namespace harmony::store
