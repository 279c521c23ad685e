#include "coordinator/service/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/attach_client.h"
#include "harmony/v1/attach.pb.h"

namespace harmony {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeLink : public ProcessLink {
 public:
  void Send(v1::ToProcess message) override { sent.push_back(message.message_case()); }
  void Close(absl::Status status) override { closed = status; }
  std::vector<int> sent;
  absl::Status closed;
};

// A process that does nothing, killed at the end.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Child() { KillAndReap(); }
  int pid() const { return pid_; }
  void KillAndReap() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Waits for a death that somebody else brought about.
  void Reap() {
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

class MembersTest : public ::testing::Test {
 protected:
  v1::Hello HelloOf(v1::Role role, int device, int pid) {
    v1::Hello hello;
    hello.set_role(role);
    hello.set_device(device);
    hello.set_pid(pid);
    hello.set_version(HarmonyVersion());
    return hello;
  }
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
  EXPECT_EQ(members_.FindSession(1)->id, (ProcessId{Role::kWorker, 1}));
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

}  // namespace
}  // namespace harmony
