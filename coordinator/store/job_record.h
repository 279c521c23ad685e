#pragma once

// What the coordinator keeps of a job across its own restarts.

#include <cstdint>
#include <string>

namespace harmony::store {

// As v1::JobState, number for number; each says what is true now.
enum class JobState {
  kQueued = 1,      // waits for its turn; nothing is allocated
  kStarting = 2,    // its arena is being allocated, processes are being told
  kRunning = 3,     // commands are out
  kRecovering = 4,  // a process was lost; the next generation is being formed
  kStopping = 5,    // asked to stop: the step in flight is being finished, then a checkpoint
  kPaused = 6,      // stopped with a checkpoint; Resume queues it again
  kFinished = 7,
  kFailed = 8,
  kCancelled = 9,
  // Something outside is missing, a file or room on a disk. All that was trained is kept in the
  // segment; it is tried again by itself, and by Resume at once.
  kWaiting = 10,
};
const char* ToString(JobState state);
// A job leaves these by itself, or is about to run.
bool IsActive(JobState state);  // starting .. stopping, waiting
bool IsEnded(JobState state);   // finished, failed, cancelled

// Why a job that is stopping stops.
// kReplan: it goes on at once, with another plan.
enum class StopIntent { kNone = 0, kCancel = 1, kPause = 2, kShutdown = 3, kReplan = 4 };

struct JobRecord {
  int64_t number = 0;  // 1, 2, ... in the order of submission; the id is "job-<number>"
  JobState state = JobState::kQueued;
  StopIntent stop = StopIntent::kNone;
  std::string yaml;
  std::string job_json;     // JobSpec as parsed
  std::string config_json;  // of the model
  std::string plan;         // Plan message
  std::string plan_text;
  std::string profile;      // text of the profile it was planned by; empty: none
  std::string replan;       // ReplanState as text; empty: nothing was searched again
  std::string result_keys;  // ResultKeysText of the job as submitted
  std::string output_dir;
  int64_t max_steps = 0;
  int64_t completed_steps = 0;
  double last_loss = 0;
  std::string error;
  int error_code = 0;  // absl::StatusCode
  std::string submitted_at, started_at, ended_at;
  std::string summary, summary_json;

  std::string id() const { return "job-" + std::to_string(number); }
};

}  // namespace harmony::store
