#include "common/runtime/attached_process.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/support/fake_coordinator.h"

namespace harmony::runtime {
namespace {

constexpr uint32_t kLane = 0;

class NoSemaphores : public LaneSemaphores {
 public:
  absl::Status Wait(uint32_t, uint32_t, uint64_t, const std::atomic<bool>&) override {
    return absl::OkStatus();
  }
  void Signal(uint32_t, uint32_t, uint64_t) override {}
};

class NoHandler : public AttachedHandler {
 public:
  absl::Status SetUpJob(const AttachedJob&) override { return absl::OkStatus(); }
  void EndJob() override {}
  void FillStats(v1::DeviceStats*) override {}
};

// A process with one lane, whose only command hangs until it is told not to.
class HungCommandTest : public ::testing::Test {
 protected:
  HungCommandTest() : coordinator_(folder_.path() + "/socket", 1) {
    pulse_.BeginWork();  // its start
    AttachedOptions options;
    options.socket_path = folder_.path() + "/socket";
    options.num_devices = 1;
    options.pulse = &pulse_;
    const LaneBody body = [this](const command::Command&, const AwaitSemaphore&) {
      runs_.set_value();
      ends_.get_future().wait();
      return absl::OkStatus();
    };
    process_ = std::make_unique<AttachedProcess>(
        options, std::vector<LaneDefinition>{{kLane, "lane", body}}, &semaphores_, &handler_,
        [](const absl::Status&) {});
    process_->Start();
    coordinator_.AwaitHello();
    coordinator_.SendStart(1);
    command::Command command;
    command.header.lane = kLane;
    command.header.signal_value = 1;
    command.body = command::Transfer{};
    coordinator_.SendCommands(1, {command});
    runs_.get_future().wait();
  }

  void AwaitSilence(bool silent) {
    while (pulse_.silent() != silent) std::this_thread::yield();
  }

  testing_support::TemporaryFolder folder_;
  testing_support::FakeCoordinator coordinator_;
  Pulse pulse_{ipc::Heartbeat(), /*longest_work=*/Millis(100)};
  NoSemaphores semaphores_;
  NoHandler handler_;
  std::promise<void> runs_, ends_;
  std::unique_ptr<AttachedProcess> process_;
};

// Nobody else would ever know: it dials in again only when the command has ended.
TEST_F(HungCommandTest, AProcessThatCannotLetGoOfALostCoordinatorFallsSilent) {
  coordinator_.BreakStream();
  AwaitSilence(true);
  ends_.set_value();
  coordinator_.AwaitHello();
  AwaitSilence(false);
}

TEST_F(HungCommandTest, SoDoesOneThatCannotLetGoForACoordinatorThatMayDieMeanwhile) {
  coordinator_.SendQuiesce(2);
  AwaitSilence(true);
  ends_.set_value();
  coordinator_.Await([](const v1::FromProcess& message) { return message.has_quiesced(); });
  AwaitSilence(false);
}

// The coordinator knows how long each may take.
TEST_F(HungCommandTest, ACommandAsSuchIsNoReasonToFallSilent) {
  coordinator_.Await([](const v1::FromProcess& message) { return message.has_stats(); });
  EXPECT_FALSE(pulse_.silent());
  ends_.set_value();
  coordinator_.AwaitProgress(1, kLane, 1);
}

}  // namespace
}  // namespace harmony::runtime
