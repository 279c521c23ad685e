#include "coordinator/service/processes/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/processes/arena_fence.h"
#include "tests/unit/coordinator/service/fake_member.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MembersTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeLink> Greet(uint64_t session, const v1::Hello& hello) {
    auto link = std::make_shared<FakeLink>();
    members_.OnHello(session, link, hello);
    return link;
  }

  std::vector<std::string> events_;
  Members members_{2,
                   {[this](const Member& m) {
                      events_.push_back(absl::StrCat("+", DebugString(m.id), "/", m.session));
                    },
                    [this](const Member& m) {
                      events_.push_back(absl::StrCat("-", DebugString(m.id), "/", m.session));
                    }}};
};

TEST_F(MembersTest, WelcomesAndForgets) {
  const auto link = Greet(1, HelloOf(v1::ROLE_WORKER, 1, getpid()));
  EXPECT_THAT(link->sent, ElementsAre(v1::ToProcess::kWelcome));
  EXPECT_EQ(members_.FindSession(1)->id, (runner::ProcessId{runner::Role::kWorker, 1}));
  members_.OnSessionClosed(1);
  EXPECT_EQ(members_.FindSession(1), nullptr);
  EXPECT_THAT(events_, ElementsAre("+worker 1/1", "-worker 1/1"));
}

TEST_F(MembersTest, RefusesWhatDoesNotFitByName) {
  v1::Hello hello = HelloOf(v1::ROLE_WORKER, 2, getpid());
  EXPECT_THAT(std::string(Greet(1, hello)->closed.message()), HasSubstr("device is 2"));
  hello = HelloOf(v1::ROLE_SWAPPER, 0, getpid());
  hello.set_version("0.0.0");
  const auto link = Greet(2, hello);
  EXPECT_EQ(link->closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(link->closed.message()), HasSubstr("0.0.0"));
  EXPECT_EQ(Greet(3, HelloOf(v1::ROLE_UNSPECIFIED, 0, getpid()))->closed.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(events_.empty());
}

TEST_F(MembersTest, ASuccessorEntersOnlyOnceThePredecessorIsDead) {
  Child old;
  Greet(1, HelloOf(v1::ROLE_SWAPPER, 0, old.pid()));
  const auto link = Greet(2, HelloOf(v1::ROLE_SWAPPER, 0, getpid()));
  old.Reap();  // killed by the second Hello; its stream was still open
  members_.OnTick();
  EXPECT_THAT(link->sent, ElementsAre(v1::ToProcess::kWelcome));
  members_.OnSessionClosed(1);  // noticed late: concerns nobody
  EXPECT_THAT(events_, ElementsAre("+swapper/1", "-swapper/1", "+swapper/2"));
}

TEST_F(MembersTest, AProcessThatDialsAgainIsNotKilled) {
  Child process;
  const v1::Hello hello = HelloOf(v1::ROLE_HOST_WORKER, 0, process.pid());
  Greet(1, hello);
  members_.OnSessionClosed(1);
  const auto link = Greet(2, hello);
  EXPECT_THAT(link->sent, ElementsAre(v1::ToProcess::kWelcome));
  EXPECT_FALSE(members_.FindSession(2)->handle.HasExited());
  EXPECT_THAT(events_, ElementsAre("+host worker/1", "-host worker/1", "+host worker/2"));
}

TEST_F(MembersTest, OfTwoSuccessorsTheLaterOneStays) {
  Child old, second, third;
  Greet(1, HelloOf(v1::ROLE_SWAPPER, 0, old.pid()));
  Greet(2, HelloOf(v1::ROLE_SWAPPER, 0, second.pid()));
  Greet(3, HelloOf(v1::ROLE_SWAPPER, 0, third.pid()));
  old.Reap();
  members_.OnTick();
  second.Reap();  // killed: there is one swapper
  members_.OnTick();
  EXPECT_THAT(events_,
              ElementsAre("+swapper/1", "-swapper/1", "+swapper/2", "-swapper/2", "+swapper/3"));
}

TEST_F(MembersTest, ASuccessorThatHasToWaitDoesNotTakeTheLaterOnesPlace) {
  Child old, second, third;
  Greet(1, HelloOf(v1::ROLE_SWAPPER, 0, old.pid()));
  Greet(2, HelloOf(v1::ROLE_SWAPPER, 0, second.pid()));
  old.Reap();  // before the third says Hello, but nobody has looked yet
  Greet(3, HelloOf(v1::ROLE_SWAPPER, 0, third.pid()));
  members_.OnTick();
  second.Reap();
  members_.OnTick();
  EXPECT_THAT(events_,
              ElementsAre("+swapper/1", "-swapper/1", "+swapper/2", "-swapper/2", "+swapper/3"));
}

// A stream that breaks does not end the process: it may be writing still.
TEST_F(MembersTest, TheArenaIsFreeOnlyOnceWhoLeftIsDead) {
  Child stays, leaves;
  Greet(1, HelloOf(v1::ROLE_SWAPPER, 0, stays.pid()));
  Greet(2, HelloOf(v1::ROLE_HOST_WORKER, 0, leaves.pid()));
  ArenaFence fence(&members_, /*predecessor=*/false);
  fence.Close();
  fence.OnQuiesced({runner::Role::kSwapper, 0});
  EXPECT_FALSE(fence.IsQuiet());
  members_.OnSessionClosed(2);
  fence.OnLost({runner::Role::kHostWorker, 0});
  leaves.Stop();  // it cannot die of itself now
  while (!fence.IsQuiet()) sched_yield();
  EXPECT_TRUE(leaves.Exited());
  EXPECT_FALSE(members_.FindSession(1)->handle.HasExited());
}

TEST_F(MembersTest, ProcessesOfAPredecessorsTimeAreUnseenUntilTheyDialIn) {
  ArenaFence fence(&members_, /*predecessor=*/true);
  EXPECT_EQ(fence.Unseen().size(), 4u);
  for (const runner::ProcessId& id : members_.Required()) fence.OnAttached(id);
  EXPECT_TRUE(fence.Unseen().empty());
  EXPECT_TRUE(ArenaFence(&members_, /*predecessor=*/false).Unseen().empty());
}

}  // namespace
}  // namespace harmony::service
