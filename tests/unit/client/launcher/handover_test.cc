#include "client/launcher/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "client/launcher/unit_process.h"

namespace harmony::client {
namespace {

using ::testing::HasSubstr;

Memory SmallMemory(int devices) {
  Memory memory;
  memory.segment = *ipc::CreateSealedMemory("segment", KiB(64));
  memory.kept_lines = *ipc::CreateSealedMemory("lines", KiB(4));
  for (int i = 0; i < devices; ++i) {
    memory.devices.push_back(*ipc::CreateDeviceRegion(i, KiB(4 * (i + 1))));
  }
  return memory;
}

class HandoverTest : public ::testing::Test {
 protected:
  ~HandoverTest() override {
    if (owner_.joinable()) owner_.join();
    unlink(path_.c_str());
  }

  // One connection is answered so.
  void Own(std::function<void(int connection)> answer) {
    absl::StatusOr<ipc::UniqueFd> listening = ListenForStarts(path_);
    ASSERT_TRUE(listening.ok()) << listening.status();
    owner_ = std::thread([listening = std::move(*listening), answer = std::move(answer)] {
      const ipc::UniqueFd connection(accept(listening.get(), nullptr, nullptr));
      answer(connection.get());
    });
  }

  const std::string path_ = ::testing::TempDir() + "/memory." + std::to_string(getpid());
  std::thread owner_;
};

TEST_F(HandoverTest, AProcessGetsAllMemoryAndWhatItIsStartedWith) {
  StartRequest seen;
  Own([&seen](int connection) {
    seen = *ReceiveStartRequest(connection);
    StartAnswer answer;
    answer.devices = "sim*2:mem=8KiB";
    answer.incarnation = 3;
    answer.own_deaths = 2;
    ASSERT_TRUE(SendStartAnswer(connection, answer, SmallMemory(2)).ok());
  });
  const auto answer = AskToStart(path_, {"worker", 1});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(seen.role, "worker");
  EXPECT_EQ(seen.device, 1);
  EXPECT_EQ(answer->devices, "sim*2:mem=8KiB");
  EXPECT_EQ(answer->incarnation, 3);
  EXPECT_EQ(answer->own_deaths, 2);
  EXPECT_FALSE(seen.died_by_itself);
  ASSERT_EQ(answer->memory.devices.size(), 2u);
  EXPECT_EQ(ipc::MappedRegion::Map(answer->memory.devices[1].get())->size(), KiB(8));
  EXPECT_EQ(ipc::MappedRegion::Map(answer->memory.segment.get())->size(), KiB(64));
}

TEST_F(HandoverTest, AnOwnerThatIsNotThereOrDiesIsWorthAnotherTry) {
  EXPECT_TRUE(absl::IsUnavailable(AskToStart(path_, {"swapper"}).status()));
  Own([](int connection) {
    ASSERT_TRUE(ReceiveStartRequest(connection).ok());
    ASSERT_TRUE(
        ipc::SendAnswer(connection,
                        R"({"code": 0, "message": ""})"
                        "\n"
                        R"({"devices": "sim", "incarnation": 0, "own_deaths": 0, "regions": 1})")
            .ok());
  });
  const absl::Status status = AskToStart(path_, {"swapper"}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(HandoverTest, AnEndIsReported) {
  StartRequest seen;
  Own([&seen](int connection) {
    seen = *ReceiveStartRequest(connection);
    ASSERT_TRUE(SendStatus(connection, absl::OkStatus()).ok());
  });
  EXPECT_TRUE(ReportOwnDeath(path_, {"worker", 1}).ok());
  EXPECT_TRUE(seen.died_by_itself);
  EXPECT_EQ(seen.device, 1);
}

// As systemd.exec(5) lists them.
TEST(UnitProcessTest, WhoWasKilledFromOutsideDidNotDieByItself) {
  EXPECT_FALSE(DiedByItself("success", "exited", "0"));
  EXPECT_FALSE(DiedByItself("signal", "killed", "KILL"));
  EXPECT_TRUE(DiedByItself("watchdog", "killed", "KILL"));
  EXPECT_TRUE(DiedByItself("oom-kill", "killed", "KILL"));
  EXPECT_TRUE(DiedByItself("signal", "killed", "TERM"));
  EXPECT_TRUE(DiedByItself("core-dump", "dumped", "SEGV"));
  EXPECT_TRUE(DiedByItself("exit-code", "exited", "1"));
}

TEST_F(HandoverTest, WhatTheOwnerRefusesIsSaidInItsWords) {
  Own([](int connection) {
    ASSERT_TRUE(ReceiveStartRequest(connection).ok());
    ASSERT_TRUE(SendStatus(connection, absl::InvalidArgumentError("there is no worker 7")).ok());
  });
  const absl::Status status = AskToStart(path_, {"worker", 7}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no worker 7"));
}

TEST_F(HandoverTest, RequestsOfOtherBuildsAndOtherPacketsAreRefused) {
  const auto refusal = [](const std::string& packet) {
    auto socket = ipc::MakeAnswerSocket();
    EXPECT_TRUE(ipc::SendAnswer(socket->asker.get(), packet).ok());
    return std::string(ReceiveStartRequest(socket->answerer.get()).status().message());
  };
  EXPECT_THAT(refusal(R"({"version": "0.0.1+other", "role": "swapper"})"),
              HasSubstr("'0.0.1+other'"));
  EXPECT_THAT(refusal("GET / HTTP/1.0"), HasSubstr("request to start"));
}

}  // namespace
}  // namespace harmony::client
