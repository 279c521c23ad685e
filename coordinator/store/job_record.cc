#include "coordinator/store/job_record.h"

namespace harmony {

const char* ToString(JobState state) {
  static constexpr const char* kNames[] = {"unspecified", "queued",   "starting", "running",
                                           "recovering",  "stopping", "paused",   "finished",
                                           "failed",      "cancelled"};
  return kNames[static_cast<int>(state)];
}

bool IsActive(JobState state) {
  return state >= JobState::kStarting && state <= JobState::kStopping;
}
bool IsEnded(JobState state) { return state >= JobState::kFinished; }

}  // namespace harmony
