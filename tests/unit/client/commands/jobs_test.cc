#include "client/commands/jobs.h"

#include <gtest/gtest.h>

#include <vector>

namespace harmony::client {
namespace {

// The number of the job that is watched when jobs 1, 2, ... have these states; 0: none.
int Watched(const std::vector<v1::JobState>& states) {
  v1::ListResponse list;
  for (const v1::JobState state : states) {
    v1::Job* job = list.add_jobs();
    job->set_job_id(std::to_string(list.jobs_size()));
    job->set_state(state);
  }
  const v1::Job* const job = JobToWatch(list);
  return job == nullptr ? 0 : std::stoi(job->job_id());
}

TEST(JobToWatchTest, IsTheRunningOneThenTheNextThenTheNewest) {
  constexpr v1::JobState kQueued = v1::JOB_STATE_QUEUED, kPaused = v1::JOB_STATE_PAUSED,
                         kFinished = v1::JOB_STATE_FINISHED;
  EXPECT_EQ(Watched({}), 0);
  for (const v1::JobState active :
       {v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING, v1::JOB_STATE_RECOVERING,
        v1::JOB_STATE_STOPPING, v1::JOB_STATE_WAITING}) {
    EXPECT_EQ(Watched({kFinished, kQueued, active, kQueued, kPaused}), 3);
  }
  // The first was cut off with its coordinator.
  EXPECT_EQ(Watched({v1::JOB_STATE_RUNNING, kFinished, v1::JOB_STATE_RUNNING, kQueued}), 3);
  EXPECT_EQ(Watched({kFinished, kQueued, kQueued, kFinished}), 2);
  EXPECT_EQ(Watched({kFinished, kPaused, v1::JOB_STATE_CANCELLED}), 3);
}

}  // namespace
}  // namespace harmony::client
