// harmony-swapper as a process: attach, copies, stale messages, a lost coordinator, signals, kills.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "common/ipc/segment.h"
#include "tests/support/fake_coordinator.h"

namespace harmony::swapper {
namespace {

constexpr int kDevices = 2;
constexpr Bytes kMemory = MiB(4);
const command::LaneTable kLanes(kDevices);
const uint32_t kIn = static_cast<uint32_t>(kLanes.IndexOf({command::LaneKind::kH2DBulk, 0}));
const uint32_t kOut = static_cast<uint32_t>(kLanes.IndexOf({command::LaneKind::kD2H, 0}));
const command::ObjectKey kGradient = {command::ObjectKind::kGradient, 0, 0};

class SwapperProcessTest : public ::testing::Test {
 protected:
  SwapperProcessTest()
      : segment_(*ipc::Segment::Create(MiB(64))),
        coordinator_(folder_.path() + "/socket", kDevices) {
    ipc::SegmentJob job;
    job.id = "job";
    job.record_count = 8;
    job.cursor_count = 1;
    job.extent = MiB(8);
    EXPECT_TRUE(segment_.AllocateJob(job).ok());
    EXPECT_TRUE(ipc::AllowInheritance(segment_.fd()).ok());
    for (int device = 0; device < kDevices; ++device) {
      device_fds_.push_back(*ipc::CreateDeviceRegion(device, kMemory));
      EXPECT_TRUE(ipc::AllowInheritance(device_fds_.back().get()).ok());
    }
  }

  void Spawn(const std::string& rates = "", int incarnation = 0, int parent = getpid()) {
    swapper_ = std::make_unique<testing_support::SpawnedProgram>(
        "harmony-swapper",
        std::vector<std::string>{"--socket", folder_.path() + "/socket", "--devices",
                                 "sim*2:mem=4MiB" + rates, "--log-level", "warning"},
        std::vector<std::string>{
            "HARMONY_SEGMENT_FD=" + std::to_string(segment_.fd()),
            "HARMONY_DEVICE_FDS=" +
                ipc::FormatDeviceFds({{0, device_fds_[0].get()}, {1, device_fds_[1].get()}}),
            "HARMONY_INCARNATION=" + std::to_string(incarnation),
            "HARMONY_PARENT_PID=" + std::to_string(parent)});
  }
  void Begin(uint32_t generation) {
    ASSERT_TRUE(segment_.RaiseGeneration(generation).ok());
    ASSERT_TRUE(segment_.BeginGeneration(generation).ok());
    coordinator_.SendStart(generation);
  }
  // Arena [0, size) to device 0.
  static command::Command In(uint64_t value, Bytes size) {
    command::Command command;
    command.header.lane = kIn;
    command.header.signal_value = value;
    command::Transfer transfer;
    transfer.destination.device = 0;
    transfer.size = size;
    command.body = transfer;
    return command;
  }
  // Back from device 0 to arena [4 MiB, ...), into record 0.
  static command::Command Out(uint64_t value, Bytes size,
                              std::vector<command::SemaphoreWait> waits = {}) {
    command::Command command;
    command.header.lane = kOut;
    command.header.signal_value = value;
    command.header.waits = std::move(waits);
    command::Transfer transfer;
    transfer.source.device = 0;
    transfer.destination.offset = MiB(4);
    transfer.size = size;
    transfer.traffic = command::TrafficClass::kGradients;
    transfer.commit = command::Commit{0, kGradient, value};
    command.body = transfer;
    return command;
  }

  testing_support::TemporaryFolder folder_;
  ipc::Segment segment_;
  std::vector<ipc::UniqueFd> device_fds_;
  testing_support::FakeCoordinator coordinator_;
  std::unique_ptr<testing_support::SpawnedProgram> swapper_;
};

TEST_F(SwapperProcessTest, CopiesCommitsReportsAndExitsOnSigterm) {
  std::memset(segment_.Arena(Bytes(0)), 42, 1000);
  Spawn();
  const v1::Hello hello = coordinator_.AwaitHello();
  EXPECT_EQ(hello.role(), v1::ROLE_SWAPPER);
  EXPECT_EQ(hello.generation(), 0);
  Begin(3);
  coordinator_.SendCommands(2, {Out(1, KiB(1))});  // stale: dropped
  coordinator_.SendCommands(3, {In(1, Bytes(1000)), Out(1, Bytes(1000), {{kIn, 1}})});
  coordinator_.AwaitProgress(3, kOut, 1);
  EXPECT_EQ(segment_.Arena(MiB(4) + Bytes(999))[0], std::byte{42});
  EXPECT_EQ(segment_.ReadRecord(0)->size, Bytes(1000));
  EXPECT_EQ(segment_.Semaphore(3, kOut).value(), 1);
  const v1::FromProcess stats =
      coordinator_.Await([](const v1::FromProcess& message) { return message.has_stats(); });
  EXPECT_EQ(stats.stats().traffic_size(), 2);
  swapper_->Signal(SIGTERM);
  EXPECT_EQ(swapper_->Wait(), 0);
}

TEST_F(SwapperProcessTest, AnswersQuiesceOnceWaitsAreReleased) {
  Spawn();
  coordinator_.AwaitHello();
  Begin(1);
  coordinator_.SendCommands(1, {Out(1, KiB(1), {{kIn, 1}})});
  ASSERT_TRUE(segment_.RaiseGeneration(2).ok());
  coordinator_.SendQuiesce(2);
  const auto quiesced =
      coordinator_.Await([](const v1::FromProcess& message) { return message.has_quiesced(); });
  EXPECT_EQ(quiesced.quiesced().generation(), 2);
  EXPECT_EQ(segment_.ReadRecord(0)->state, command::ObjectState::kFree);
  ASSERT_TRUE(segment_.BeginGeneration(2).ok());
  coordinator_.SendStart(2);
  coordinator_.SendCommands(1, {Out(2, KiB(1))});
  coordinator_.SendCommands(2, {Out(1, KiB(2))});
  coordinator_.AwaitProgress(2, kOut, 1);
  EXPECT_EQ(segment_.ReadRecord(0)->size, KiB(2));
}

TEST_F(SwapperProcessTest, AFailedCommandIsReported) {
  Spawn();
  coordinator_.AwaitHello();
  Begin(1);
  coordinator_.SendCommands(1, {In(1, MiB(5))});
  const auto failed =
      coordinator_.Await([](const v1::FromProcess& message) { return message.has_failed(); });
  EXPECT_EQ(failed.failed().lane(), kIn);
  EXPECT_EQ(failed.failed().value(), 1);
  EXPECT_EQ(failed.failed().code(), static_cast<int>(absl::StatusCode::kOutOfRange));
}

TEST_F(SwapperProcessTest, DialsAgainWhenTheCoordinatorIsGone) {
  Spawn();
  coordinator_.AwaitHello();
  Begin(4);
  coordinator_.SendCommands(4, {Out(1, KiB(1), {{kIn, 1}})});
  coordinator_.BreakStream();
  EXPECT_EQ(coordinator_.AwaitHello().generation(), 4);
  Begin(5);
  coordinator_.SendCommands(5, {Out(1, KiB(3))});
  coordinator_.AwaitProgress(5, kOut, 1);
  EXPECT_EQ(segment_.ReadRecord(0)->size, KiB(3));
}

TEST_F(SwapperProcessTest, KilledInACopyItLeavesNoCommitAndItsSuccessorGoesOn) {
  Spawn(",d2h=1KB/s");
  coordinator_.AwaitHello();
  Begin(1);
  const ipc::MappedRegion memory = *ipc::MappedRegion::Map(device_fds_[0].get());
  std::memset(memory.data(), 9, static_cast<size_t>(MiB(1).count()));
  coordinator_.SendCommands(1, {Out(1, MiB(1))});
  auto* last = reinterpret_cast<volatile char*>(segment_.Arena(MiB(5) - Bytes(1)));
  while (*last != 9) usleep(100);
  swapper_->Signal(SIGKILL);
  EXPECT_EQ(swapper_->Wait(), -SIGKILL);
  EXPECT_EQ(segment_.ReadRecord(0)->state, command::ObjectState::kFree);
  Spawn("", 1);
  EXPECT_EQ(coordinator_.AwaitHello().incarnation(), 1);
  Begin(2);
  coordinator_.SendCommands(2, {Out(1, MiB(1))});
  coordinator_.AwaitProgress(2, kOut, 1);
  EXPECT_EQ(segment_.ReadRecord(0)->state, command::ObjectState::kClean);
}

TEST_F(SwapperProcessTest, RefusesToRunWithoutItsParent) {
  Spawn("", 0, 1);
  EXPECT_EQ(swapper_->Wait(), 2);
}

}  // namespace
}  // namespace harmony::swapper
