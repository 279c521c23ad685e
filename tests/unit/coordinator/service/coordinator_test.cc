#include "coordinator/service/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/base/build_identity.h"
#include "coordinator/service/run/prepare_run.h"
#include "coordinator/store/job_store.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/io/temp_dir.h"
#include "tests/unit/coordinator/service/fake_member.h"
#include "tests/unit/coordinator/service/small_setup.h"

namespace harmony::service {
namespace {

// A coordinator on a segment, in the place of one that was killed.
class SuccessorTest : public ::testing::Test {
 protected:
  SuccessorTest() : segment_(*ipc::Segment::Create(MiB(16))) {}

  // A coordinator that has jobs queued, whose descriptions are damaged: they fail as soon as they
  // are taken up.
  void Succeed(int jobs = 1) {
    auto store = *store::JobStore::Open(dir_.File(""));
    for (int i = 0; i < jobs; ++i) {
      store::JobRecord record = Queued();
      ASSERT_TRUE(store->Insert(&record).ok());
    }
    auto registry = JobRegistry::Open(std::move(store));
    ASSERT_TRUE(registry.ok()) << registry.status();
    coordinator_ = std::make_unique<Coordinator>(SmallMachine(), &segment_, *std::move(registry),
                                                 &mailbox_, clock_);
    coordinator_->Begin();
  }
  store::JobRecord Queued() const {
    store::JobRecord record;
    record.output_dir = output_;
    record.state = store::JobState::kQueued;
    record.submitted_at = "2024-01-01T00:00:00Z";
    return record;
  }
  // Runs the loop until the job has that state; for some ticks at least.
  void RunUntil(store::JobState state) {
    int ticks = 0;
    mailbox_.Run(std::chrono::milliseconds(1), [&] {
      coordinator_->OnTick();
      if (++ticks > 5 && this->state() == state) mailbox_.Close();
    });
  }
  store::JobState state() { return coordinator_->registry().jobs().begin()->second.state; }
  void Greet(uint64_t session, v1::Role role, int pid) {
    v1::FromProcess message;
    *message.mutable_hello() = HelloOf(role, 0, pid);
    coordinator_->OnHello(session, std::make_shared<FakeLink>(), message);
  }
  void LeaveAJob() {
    ipc::SegmentJob job;
    job.id = "job-7";
    job.extent = MiB(1);
    ASSERT_TRUE(segment_.AllocateJob(job).ok());
    ASSERT_TRUE(segment_.RaiseGeneration(3).ok());
  }

  io::TempDir dir_;
  std::string output_ = dir_.path();
  ipc::Segment segment_;
  Mailbox mailbox_;
  FakeClock clock_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(SuccessorTest, AJobStartsAtOnceInAFreshSegment) {
  Succeed();
  RunUntil(store::JobState::kFailed);
}

// As after a start of the machine at which a disk is late.
TEST_F(SuccessorTest, AJobWhoseOutputIsNotThereYetWaitsForIt) {
  output_ = dir_.File("mounted later");
  Succeed();
  bool waited = false;
  mailbox_.Run(std::chrono::milliseconds(1), [&] {
    coordinator_->OnTick();
    if (!waited && state() == store::JobState::kWaiting) {
      waited = true;
      std::filesystem::create_directory(output_);
      ASSERT_TRUE(coordinator_->Resume("job-1", {}).ok());  // tries at once
    }
    // Its description is damaged, which is found now.
    if (state() == store::JobState::kFailed) mailbox_.Close();
  });
  EXPECT_TRUE(waited);
}

TEST_F(SuccessorTest, AJobThatWaitsToBeginCanBeCancelledAndStopsNobody) {
  output_ = dir_.File("mounted later");
  Succeed(/*jobs=*/2);
  bool cancelled = false, stopped = false;
  const auto& jobs = coordinator_->registry().jobs();
  mailbox_.Run(std::chrono::milliseconds(1), [&] {
    coordinator_->OnTick();
    if (!cancelled && state() == store::JobState::kWaiting) {
      cancelled = coordinator_->Cancel("job-1").ok();
    }
    if (!stopped && jobs.at(2).state == store::JobState::kWaiting) {
      stopped = true;
      coordinator_->Terminate([&] { mailbox_.Close(); });
    }
  });
  EXPECT_EQ(jobs.at(1).state, store::JobState::kCancelled);
  EXPECT_EQ(jobs.at(2).state, store::JobState::kQueued);
}

// Killed between the end of a job and the release of its memory, and nothing else to do.
TEST_F(SuccessorTest, WhatAnEndedJobLeftIsGivenBack) {
  LeaveAJob();
  Succeed(/*jobs=*/0);
  Child swapper, host, worker;
  Greet(1, v1::ROLE_SWAPPER, swapper.pid());
  Greet(2, v1::ROLE_HOST_WORKER, host.pid());
  EXPECT_TRUE(segment_.ReadJob().ok());
  Greet(3, v1::ROLE_WORKER, worker.pid());
  mailbox_.Run(std::chrono::milliseconds(1), [&] {
    coordinator_->OnTick();
    if (absl::IsNotFound(segment_.ReadJob().status())) mailbox_.Close();
  });
}

// A job that was resumed after a pause has a lower number than the one that ran meanwhile; to start
// it first would throw away what the segment holds of that.
TEST_F(SuccessorTest, TheJobInTheSegmentGoesOnBeforeAllOthers) {
  store::JobRecord second = Queued();
  second.number = 2;
  ipc::SegmentJob held;
  held.id = second.id();
  held.digest = SegmentDigestOf(second);
  held.extent = MiB(1);
  held.text = R"({"checkpoint": "", "first_step": 0})";
  ASSERT_TRUE(segment_.AllocateJob(held).ok());
  Succeed(/*jobs=*/2);
  EXPECT_EQ(coordinator_->registry().jobs().at(1).state, store::JobState::kQueued);
  EXPECT_EQ(coordinator_->registry().jobs().at(2).state, store::JobState::kStarting);
}

// What lies where is the sources' matter.
TEST_F(SuccessorTest, ASegmentOfAnotherBuildIsNotContinued) {
  const store::JobRecord job = Queued();
  EXPECT_EQ(SegmentDigestOf(job), SegmentDigestOf(job, BuildIdentity()));
  EXPECT_NE(SegmentDigestOf(job), SegmentDigestOf(job, "0.1.0+another"));
}

// Processes that the predecessor gave commands to may still run them: the arena is not for another
// job before they have dialled in.
TEST_F(SuccessorTest, TheArenaOfAnotherJobIsTakenOnlyWhenAllHaveDialledIn) {
  LeaveAJob();
  Succeed();
  Child swapper, host, worker;
  Greet(1, v1::ROLE_SWAPPER, swapper.pid());
  Greet(2, v1::ROLE_HOST_WORKER, host.pid());
  RunUntil(store::JobState::kQueued);
  EXPECT_EQ(segment_.ReadJob()->id, "job-7");
}

TEST_F(SuccessorTest, ItIsTakenThen) {
  LeaveAJob();
  Succeed();
  Child swapper, host, worker;
  Greet(1, v1::ROLE_SWAPPER, swapper.pid());
  Greet(2, v1::ROLE_HOST_WORKER, host.pid());
  Greet(3, v1::ROLE_WORKER, worker.pid());
  RunUntil(store::JobState::kFailed);
}

// A job has ended, and the processes (none of which answers here) have to let go of it.
class DeadlineTest : public SuccessorTest {
 protected:
  DeadlineTest() {
    Succeed();
    Greet(1, v1::ROLE_SWAPPER, swapper_.pid());
    RunUntil(store::JobState::kFailed);
  }
  Child swapper_;
};

TEST_F(DeadlineTest, WhoDoesNotAnswerInTimeIsKilled) {
  const auto live = [this](Nanos time) {
    for (const Nanos end = clock_.now + time; clock_.now < end; clock_.now += Millis(500)) {
      coordinator_->OnTick();
    }
  };
  live(Seconds(29));
  EXPECT_FALSE(swapper_.Exited());
  live(Seconds(3));
  swapper_.Reap();
}

// It was stopped itself (SIGSTOP, a machine that slept): it has not seen whether they answered.
TEST_F(DeadlineTest, TheTimeInWhichTheCoordinatorWasStoppedCountsAgainstNobody) {
  clock_.now += Seconds(3600);
  for (int ticks = 0; ticks < 50; ++ticks) {
    coordinator_->OnTick();
    clock_.now += Millis(500);
  }
  EXPECT_FALSE(swapper_.Exited());
}

}  // namespace
}  // namespace harmony::service
