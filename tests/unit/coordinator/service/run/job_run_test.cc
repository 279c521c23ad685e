#include "coordinator/service/run/job_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/io/temp_dir.h"
#include "tests/unit/coordinator/service/fake_member.h"
#include "tests/unit/coordinator/service/small_setup.h"

namespace harmony::service {
namespace {

using ::testing::HasSubstr;

// A job on one device, whose processes do not come or die while they are set up.
class JobRunTest : public ::testing::Test {
 protected:
  // `continues`: a segment holds what it has trained.
  void Begin(bool continues) {
    RunSetup setup = SmallSetup();
    setup.spec.output_dir = dir_.File("");
    setup.spec.max_steps = 10;
    setup.continues = continues;
    RunEvents events;
    events.report = [this](const std::string& line) { said_ += line + "\n"; };
    events.state_changed = [] {};
    events.ended = [this](const absl::Status& status) { ended_ = status; };
    run_ = std::make_unique<JobRun>(std::move(setup), SmallMachine(), &segment_, &members_, &clock_,
                                    std::move(events));
    ASSERT_TRUE(run_->Start().ok());
  }
  void Live(Nanos time) {
    for (const Nanos end = clock_.now + time; clock_.now < end && !run_->ended();
         clock_.now += Seconds(1)) {
      run_->OnTick();
    }
  }
  // A worker comes, is told the job, and dies by itself.
  void DieInSetup() {
    Child process;
    v1::FromProcess hello;
    *hello.mutable_hello() = HelloOf(v1::ROLE_WORKER, 0, process.pid());
    hello.mutable_hello()->set_own_deaths(deaths_);
    hello.mutable_hello()->set_incarnation(deaths_++);
    link_ = std::make_shared<FakeLink>();
    members_.OnHello(deaths_, link_, hello.hello());
    process.KillAndReap();
    members_.OnSessionClosed(deaths_);
    members_.OnTick();
  }
  // The process of session 1 cannot take it up now.
  void RefuseJob() {
    v1::FromProcess message;
    message.mutable_job_ready()->set_job_id(run_->setup().id);
    message.mutable_job_ready()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    run_->OnMessage(*members_.FindSession(1), message);
  }
  bool told_the_job() const {
    return std::count(link_->sent.begin(), link_->sent.end(), v1::ToProcess::kJob) > 0;
  }

  io::TempDir dir_;
  ipc::Segment segment_ = *ipc::Segment::Create(MiB(16));
  FakeClock clock_;
  Members members_{1,
                   {[this](const Member& member) { run_->OnAttached(member); },
                    [this](const Member& member) { run_->OnLost(member); }}};
  std::unique_ptr<JobRun> run_;
  std::shared_ptr<FakeLink> link_;
  uint32_t deaths_ = 0;
  std::string said_;
  std::optional<absl::Status> ended_;
};

TEST_F(JobRunTest, AProcessThatNeverComesEndsAJobThatHasNothingToLose) {
  Begin(/*continues=*/false);
  Live(Seconds(299));
  EXPECT_FALSE(ended_.has_value());
  Live(Seconds(3));
  ASSERT_TRUE(ended_.has_value());
  EXPECT_EQ(ended_->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(ended_->message(), HasSubstr("swapper has not been there for 5 min"));
}

TEST_F(JobRunTest, AJobThatHasTrainedWaitsForIt) {
  Begin(/*continues=*/true);
  Live(Seconds(299));
  EXPECT_FALSE(run_->waiting());
  Live(Seconds(7200));
  EXPECT_TRUE(run_->waiting());
  EXPECT_FALSE(ended_.has_value());
  EXPECT_EQ(said_,
            "swapper has not been there for 5 min; its log says why: the job waits and keeps what "
            "it has trained\n");
  // It can be stopped all the same.
  run_->Stop();
  Live(Seconds(60));
  ASSERT_TRUE(ended_.has_value());
  EXPECT_TRUE(ended_->ok());
}

// Pinning much memory, say, takes its time.
TEST_F(JobRunTest, AStopWaitsForWhoTakesUpWhatWasTrained) {
  Begin(/*continues=*/true);
  Child processes[3];
  uint64_t session = 0;
  for (const v1::Role role : {v1::ROLE_WORKER, v1::ROLE_SWAPPER, v1::ROLE_HOST_WORKER}) {
    const int pid = processes[session].pid();
    members_.OnHello(++session, std::make_shared<FakeLink>(), HelloOf(role, 0, pid));
  }
  run_->Stop();
  Live(Seconds(240));
  EXPECT_FALSE(ended_.has_value());
  // Who is not there at all is waited for as long as a successor needs.
  processes[2].KillAndReap();
  members_.OnSessionClosed(session);
  members_.OnTick();
  Live(Seconds(25));
  EXPECT_FALSE(ended_.has_value());
  Live(Seconds(10));
  ASSERT_TRUE(ended_.has_value());
  EXPECT_TRUE(ended_->ok()) << *ended_;
}

TEST_F(JobRunTest, AProcessThatDiesInEverySetUpEndsAJobThatHasNothingToLose) {
  Begin(/*continues=*/false);
  for (int i = 0; i < 6; ++i) DieInSetup();
  EXPECT_FALSE(ended_.has_value());
  DieInSetup();
  ASSERT_TRUE(ended_.has_value());
  EXPECT_THAT(ended_->message(), HasSubstr("worker 0 died 6 times while the job was being set up"));
}

TEST_F(JobRunTest, AJobThatHasTrainedSetsItUpLater) {
  Begin(/*continues=*/true);
  for (int i = 0; i < 6; ++i) DieInSetup();
  EXPECT_TRUE(told_the_job());
  DieInSetup();
  EXPECT_FALSE(ended_.has_value());
  EXPECT_FALSE(told_the_job());
  EXPECT_THAT(said_, HasSubstr("worker 0 died 6 times while the job was being set up; its log says "
                               "why: the job waits and keeps what it has trained; the next try is "
                               "in 1.00 s, or now with `resume`"));
}

// It may be refused for long, and there is nothing to write.
TEST_F(JobRunTest, AStopEndsAJobThatIsRefusedAndHoldsNothing) {
  Begin(/*continues=*/false);
  Child process;
  members_.OnHello(1, std::make_shared<FakeLink>(), HelloOf(v1::ROLE_WORKER, 0, process.pid()));
  RefuseJob();
  Live(Seconds(5));
  EXPECT_FALSE(ended_.has_value());
  EXPECT_THAT(said_, HasSubstr(": the job waits; the next try is in 1.00 s"));
  run_->Stop();
  Live(Seconds(2));
  ASSERT_TRUE(ended_.has_value());
  EXPECT_TRUE(ended_->ok()) << *ended_;
}

TEST_F(JobRunTest, NobodyIsAskedASecondTimeBeforeItHasAnswered) {
  Begin(/*continues=*/true);
  Child process;
  const auto link = std::make_shared<FakeLink>();
  members_.OnHello(1, link, HelloOf(v1::ROLE_WORKER, 0, process.pid()));
  const auto asked = [&] {
    return std::count(link->sent.begin(), link->sent.end(), v1::ToProcess::kJob);
  };
  EXPECT_EQ(asked(), 1);
  for (int answered = 1; answered < 4; ++answered) {
    RefuseJob();
    for (int i = 0; i < 3; ++i) {
      run_->TryNow();
      Live(Seconds(100));
      EXPECT_EQ(asked(), answered + 1);
    }
  }
}

}  // namespace
}  // namespace harmony::service
