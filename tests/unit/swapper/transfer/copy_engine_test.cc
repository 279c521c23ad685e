#include "swapper/transfer/copy_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/ipc/segment.h"
#include "common/runtime/lane_executor.h"
#include "common/runtime/segment_semaphores.h"
#include "swapper/transfer/sim_copier.h"

namespace harmony::swapper {
namespace {

using ::testing::HasSubstr;

constexpr int kDevices = 2;
constexpr Bytes kDeviceMemory = MiB(4);
constexpr Bytes kExtent = MiB(8);
const command::LaneTable kLanes(kDevices);
const command::ObjectKey kGradient = {command::ObjectKind::kGradient, 3, 0};

plan::DeviceSpec Sim(int ordinal) {
  plan::DeviceSpec device;
  device.ordinal = ordinal;
  device.memory = kDeviceMemory;
  return device;
}

class CopyEngineTest : public ::testing::Test {
 protected:
  CopyEngineTest() : segment_(*ipc::Segment::Create(MiB(64))), arena_(&segment_) {
    ipc::SegmentJob job;
    job.id = "job";
    job.record_count = 32;
    job.cursor_count = 1;
    job.extent = kExtent;
    EXPECT_TRUE(segment_.AllocateJob(job).ok());
    EXPECT_TRUE(arena_.Refresh().ok());
    MakeEngine({Sim(0), Sim(1)});
  }

  void MakeEngine(const std::vector<plan::DeviceSpec>& devices) {
    std::vector<ipc::MappedRegion> regions;
    memory_.clear();
    for (const plan::DeviceSpec& device : devices) {
      const ipc::UniqueFd fd = *ipc::CreateDeviceRegion(device.ordinal, device.memory);
      regions.push_back(*ipc::MappedRegion::Map(fd.get()));
      memory_.push_back(regions.back().data());
    }
    engine_ = std::make_unique<CopyEngine>(
        &arena_, devices,
        std::make_unique<SimCopier>(arena_.data(), devices, std::move(regions),
                                    std::vector<int>{0, 1}));
  }

  static command::Command Make(command::LaneKind kind, int device, command::Endpoint source,
                               command::Endpoint destination, Bytes size) {
    command::Command command;
    command.header.id = 17;
    command.header.lane = static_cast<uint32_t>(kLanes.IndexOf({kind, device}));
    command::Transfer transfer;
    transfer.source = source;
    transfer.destination = destination;
    transfer.size = size;
    command.body = transfer;
    return command;
  }
  static command::Transfer& Body(command::Command& command) {
    return std::get<command::Transfer>(command.body);
  }

  static void Fill(std::byte* data, Bytes size, uint64_t seed) {
    CounterRandom random(seed);
    for (int64_t i = 0; i < size.count(); ++i) data[i] = static_cast<std::byte>(random.Next64());
  }
  static int64_t PagesOf(Bytes size) { return size.count() / sysconf(_SC_PAGESIZE); }
  static int64_t PagesPresent(std::byte* data, Bytes size) {
    std::vector<unsigned char> present(static_cast<size_t>(PagesOf(size)));
    EXPECT_EQ(mincore(data, static_cast<size_t>(size.count()), present.data()), 0);
    return std::count_if(present.begin(), present.end(), [](unsigned char c) { return c & 1; });
  }
  static bool Same(const std::byte* a, const std::byte* b, Bytes size) {
    return std::memcmp(a, b, static_cast<size_t>(size.count())) == 0;
  }

  ipc::Segment segment_;
  HostArena arena_;
  std::vector<std::byte*> memory_;
  std::unique_ptr<CopyEngine> engine_;
};

TEST_F(CopyEngineTest, GoesRoundFromArenaOverTwoDevicesBack) {
  const Bytes size(1'000'003);
  Fill(segment_.Arena(Bytes(64)), size, 1);
  segment_.Publish(
      5,
      {{command::ObjectKind::kParameter, 0, 0}, Bytes(64), size, 9, command::ObjectState::kClean});
  command::Command in =
      Make(command::LaneKind::kH2DBulk, 0, {-1, Bytes(64)}, {0, Bytes(128)}, size);
  Body(in).expect = command::Expect{5, 9};
  ASSERT_EQ(engine_->Run(in), absl::OkStatus());
  command::Command across =
      Make(command::LaneKind::kP2P, 0, {0, Bytes(128)}, {1, Bytes(4096)}, size);
  Body(across).traffic = command::TrafficClass::kBoundary;
  ASSERT_EQ(engine_->Run(across), absl::OkStatus());
  command::Command out = Make(command::LaneKind::kD2H, 1, {1, Bytes(4096)}, {-1, MiB(2)}, size);
  Body(out).traffic = command::TrafficClass::kGradients;
  Body(out).commit = command::Commit{6, kGradient, 4};
  ASSERT_EQ(engine_->Run(out), absl::OkStatus());

  EXPECT_TRUE(Same(segment_.Arena(Bytes(64)), segment_.Arena(MiB(2)), size));
  const command::ObjectView view = *segment_.ReadRecord(6);
  EXPECT_EQ(view.key, kGradient);
  EXPECT_EQ(view.version, 4);
  EXPECT_EQ(view.state, command::ObjectState::kClean);
  EXPECT_EQ(view.offset, MiB(2));
  EXPECT_EQ(view.size, size);
  const auto rows = engine_->counters().Snapshot();
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[0].direction, LinkDirection::kH2D);
  EXPECT_EQ(rows[1].traffic, command::TrafficClass::kBoundary);
  EXPECT_EQ(rows[1].device, 0);
  EXPECT_EQ(rows[2].device, 1);
  for (const auto& row : rows) EXPECT_EQ(row.bytes, size);
}

TEST_F(CopyEngineTest, RefusesARecordThatDoesNotHoldTheVersion) {
  segment_.Publish(
      5,
      {{command::ObjectKind::kParameter, 2, 0}, Bytes(0), KiB(1), 9, command::ObjectState::kClean});
  command::Command in = Make(command::LaneKind::kH2DBulk, 0, {-1, Bytes(0)}, {0, Bytes(0)}, KiB(1));
  Body(in).expect = command::Expect{5, 10};
  const absl::Status status = engine_->Run(in);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds version 9, clean"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("transfer 17"));
  segment_.Publish(5, {{command::ObjectKind::kParameter, 2, 0},
                       Bytes(0),
                       KiB(1),
                       10,
                       command::ObjectState::kUpdating});
  EXPECT_FALSE(engine_->Run(in).ok());
  segment_.Publish(5, {{command::ObjectKind::kParameter, 2, 0},
                       Bytes(0),
                       KiB(1),
                       10,
                       command::ObjectState::kClean});
  EXPECT_TRUE(engine_->Run(in).ok());
  Body(in).size = KiB(2);
  EXPECT_FALSE(engine_->Run(in).ok()) << "beyond the object's data";
  segment_.SetFree(5);
  EXPECT_FALSE(engine_->Run(in).ok());
  EXPECT_EQ(engine_->counters().Snapshot().size(), 1);
}

TEST_F(CopyEngineTest, RetiresBeforeItWritesAndOnlyItsOwnRecords) {
  segment_.Publish(7, {kGradient, Bytes(0), KiB(1), 3, command::ObjectState::kClean});
  segment_.Publish(
      8,
      {{command::ObjectKind::kParameter, 0, 0}, KiB(4), KiB(1), 3, command::ObjectState::kClean});
  command::Command out = Make(command::LaneKind::kD2H, 0, {0, Bytes(0)}, {-1, Bytes(0)}, KiB(1));
  Body(out).retire = {7};
  Body(out).commit = command::Commit{9, {command::ObjectKind::kStash, 2, 1}, 4};
  ASSERT_EQ(engine_->Run(out), absl::OkStatus());
  EXPECT_EQ(segment_.ReadRecord(7)->state, command::ObjectState::kFree);
  EXPECT_EQ(segment_.ReadRecord(9)->state, command::ObjectState::kClean);

  Body(out).retire = {8};
  EXPECT_EQ(engine_->Run(out).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(segment_.ReadRecord(8)->state, command::ObjectState::kClean);
  Body(out).retire = {};
  Body(out).commit = command::Commit{9, {command::ObjectKind::kParameter, 0, 0}, 4};
  EXPECT_FALSE(engine_->Run(out).ok()) << "a parameter is the host worker's to commit";
  Body(out).commit = command::Commit{32, kGradient, 4};
  EXPECT_FALSE(engine_->Run(out).ok()) << "no such record";
}

TEST_F(CopyEngineTest, RefusesWhatLiesOutside) {
  const auto code = [&](command::Command command) { return engine_->Run(command).code(); };
  const Bytes size = KiB(1);
  using enum command::LaneKind;
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, kExtent - Bytes(1)}, {0, Bytes(0)}, size)),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, Bytes(0)}, {0, kDeviceMemory}, size)),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, Bytes(0)}, {0, Bytes(-1)}, size)),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, Bytes(INT64_MAX)}, {0, Bytes(0)}, size)),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, Bytes(0)}, {2, Bytes(0)}, size)),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, Bytes(0)}, {0, Bytes(0)}, Bytes(-8))),
            absl::StatusCode::kOutOfRange);
}

TEST_F(CopyEngineTest, RefusesTransfersOfAnotherLane) {
  const auto code = [&](command::Command command) { return engine_->Run(command).code(); };
  using enum command::LaneKind;
  EXPECT_EQ(code(Make(kD2H, 0, {-1, Bytes(0)}, {0, Bytes(0)}, KiB(1))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Make(kH2DBulk, 0, {-1, Bytes(0)}, {1, Bytes(0)}, KiB(1))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Make(kP2P, 0, {0, Bytes(0)}, {0, KiB(8)}, KiB(1))),
            absl::StatusCode::kInvalidArgument);
  command::Command retires = Make(kH2DBulk, 0, {-1, Bytes(0)}, {0, Bytes(0)}, KiB(1));
  Body(retires).retire = {1};
  EXPECT_EQ(code(retires), absl::StatusCode::kInvalidArgument);
}

TEST_F(CopyEngineTest, PacedTransfersOfOneDirectionShareTheLink) {
  plan::DeviceSpec paced = Sim(0);
  paced.h2d = BytesPerSecond{50e6};  // 1 MB: 20 ms
  MakeEngine({paced, Sim(1)});
  const Nanos begin = MonotonicClock().Now();
  auto bulk = std::async(std::launch::async, [&] {
    return engine_->Run(
        Make(command::LaneKind::kH2DBulk, 0, {-1, Bytes(0)}, {0, Bytes(0)}, Bytes(1'000'000)));
  });
  ASSERT_TRUE(
      engine_
          ->Run(Make(command::LaneKind::kH2DStream, 0, {-1, MiB(2)}, {0, MiB(2)}, Bytes(1'000'000)))
          .ok());
  ASSERT_TRUE(bulk.get().ok());
  EXPECT_GE(MonotonicClock().Now() - begin, Millis(40) - Nanos(500'000));
  EXPECT_EQ(engine_->paced_transfers(), 2);
}

TEST_F(CopyEngineTest, DevicesOfOneRootShareItsLink) {
  std::vector<plan::DeviceSpec> paced = {Sim(0), Sim(1)};
  for (plan::DeviceSpec& device : paced) {
    device.d2h = BytesPerSecond{50e6};  // 1 MB: 20 ms
    device.root = "left";
  }
  MakeEngine(paced);
  const Nanos begin = MonotonicClock().Now();
  auto other = std::async(std::launch::async, [&] {
    return engine_->Run(
        Make(command::LaneKind::kD2H, 0, {0, Bytes(0)}, {-1, Bytes(0)}, Bytes(1'000'000)));
  });
  ASSERT_TRUE(
      engine_->Run(Make(command::LaneKind::kD2H, 1, {1, Bytes(0)}, {-1, MiB(2)}, Bytes(1'000'000)))
          .ok());
  ASSERT_TRUE(other.get().ok());
  EXPECT_GE(MonotonicClock().Now() - begin, Millis(40) - Nanos(500'000));
}

// Lanes, segment and engine together: copies over two devices, each waiting for the one before.
TEST_F(CopyEngineTest, LanesOfTheSegmentRunAChainOfTransfers) {
  const Bytes size = KiB(256);
  Fill(segment_.Arena(Bytes(0)), size, 2);
  runtime::SegmentSemaphores semaphores(&segment_);
  std::promise<void> finished;
  const command::Lane last{command::LaneKind::kD2H, 1};
  std::vector<runtime::LaneDefinition> lanes;
  for (const command::Lane& lane : {command::Lane{command::LaneKind::kH2DStream, 0},
                                    command::Lane{command::LaneKind::kP2P, 0}, last}) {
    lanes.push_back(
        {static_cast<uint32_t>(kLanes.IndexOf(lane)), DebugString(lane),
         [this](const command::Command& command, const auto&) { return engine_->Run(command); }});
  }
  constexpr uint64_t kRounds = 50;
  runtime::LaneExecutor executor(
      std::move(lanes), &semaphores, [&](std::vector<runtime::LaneReport> reports) {
        for (const runtime::LaneReport& report : reports) {
          EXPECT_EQ(report.failure, absl::OkStatus());
          if (report.lane == static_cast<uint32_t>(kLanes.IndexOf(last)) &&
              report.completed.back().value == kRounds) {
            finished.set_value();
          }
        }
      });
  ASSERT_TRUE(segment_.RaiseGeneration(1).ok());
  ASSERT_TRUE(segment_.BeginGeneration(1).ok());
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  std::vector<command::Command> commands;
  uint32_t previous = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    command::Command chain[] = {
        Make(command::LaneKind::kH2DStream, 0, {-1, Bytes(0)}, {0, Bytes(0)}, size),
        Make(command::LaneKind::kP2P, 0, {0, Bytes(0)}, {1, Bytes(0)}, size),
        Make(command::LaneKind::kD2H, 1, {1, Bytes(0)}, {-1, MiB(4)}, size),
    };
    Body(chain[2]).commit = command::Commit{1, kGradient, round};
    for (command::Command& command : chain) {
      command.header.signal_value = round;
      const bool first = round == 1 && &command == &chain[0];
      if (!first) {
        const bool new_round = &command == &chain[0];
        command.header.waits = {{previous, new_round ? round - 1 : round}};
      }
      previous = command.header.lane;
      commands.push_back(command);
    }
  }
  executor.Enqueue(1, std::move(commands));
  finished.get_future().wait();
  executor.Quiesce();
  EXPECT_TRUE(Same(segment_.Arena(Bytes(0)), segment_.Arena(MiB(4)), size));
  EXPECT_EQ(segment_.ReadRecord(1)->version, kRounds);
}

// A raised generation releases a lane that waits, and nothing behind the wait runs.
TEST_F(CopyEngineTest, ARaisedGenerationReleasesWaitingLanes) {
  runtime::SegmentSemaphores semaphores(&segment_);
  const uint32_t lane = static_cast<uint32_t>(kLanes.IndexOf({command::LaneKind::kD2H, 0}));
  runtime::LaneExecutor executor(
      {{lane, "d2h",
        [this](const command::Command& command, const auto&) { return engine_->Run(command); }}},
      &semaphores, [](std::vector<runtime::LaneReport> reports) { EXPECT_TRUE(reports.empty()); });
  ASSERT_TRUE(segment_.RaiseGeneration(1).ok());
  ASSERT_TRUE(segment_.BeginGeneration(1).ok());
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  command::Command out = Make(command::LaneKind::kD2H, 0, {0, Bytes(0)}, {-1, Bytes(0)}, KiB(1));
  out.header.signal_value = 1;
  out.header.waits = {{0, 1}};
  Body(out).commit = command::Commit{1, kGradient, 1};
  executor.Enqueue(1, {out});
  ASSERT_TRUE(segment_.RaiseGeneration(2).ok());
  executor.Quiesce();
  EXPECT_EQ(segment_.ReadRecord(1)->state, command::ObjectState::kFree);
}

// Killed in the middle of a copy: the record that was overwritten is free, the new one is not
// committed; whatever is committed has its bytes.
TEST_F(CopyEngineTest, AKilledCopyLeavesNoRecordOfHalfWrittenData) {
  const Bytes size = MiB(2);
  segment_.Publish(1, {kGradient, Bytes(0), size, 1, command::ObjectState::kClean});
  plan::DeviceSpec slow = Sim(0);
  slow.d2h = BytesPerSecond{1e3};  // half an hour: killed before its end
  MakeEngine({slow, Sim(1)});
  std::memset(memory_[0], 7, static_cast<size_t>(size.count()));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    command::Command out = Make(command::LaneKind::kD2H, 0, {0, Bytes(0)}, {-1, Bytes(0)}, size);
    Body(out).retire = {1};
    Body(out).commit = command::Commit{2, kGradient, 2};
    (void)engine_->Run(out);
    _exit(0);
  }
  // The last byte has arrived: the copy is between its data and its commit.
  auto* end = reinterpret_cast<volatile char*>(segment_.Arena(size - Bytes(1)));
  while (*end != 7) usleep(100);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(segment_.ReadRecord(1)->state, command::ObjectState::kFree);
  EXPECT_EQ(segment_.ReadRecord(2)->state, command::ObjectState::kFree);
}

// Of paced devices only: 64 MiB at each end of the resident part.
TEST_F(CopyEngineTest, MakesPresentWhatAJobUsesFirst) {
  plan::DeviceSpec paced = Sim(1);
  paced.flops = {1e9};
  paced.memory = MiB(300);
  MakeEngine({Sim(0), paced});
  if (madvise(memory_[0], 1, MADV_POPULATE_READ) != 0) {
    GTEST_SKIP() << "this kernel cannot map pages ahead";
  }
  MakeEngine({Sim(0), paced});
  plan::Plan plan;
  plan.devices.resize(2);
  plan.devices[0].resident = MiB(4);
  plan.devices[1].resident = MiB(200);
  ASSERT_TRUE(engine_->BeginJob(plan).ok());
  EXPECT_EQ(PagesPresent(memory_[0], MiB(4)), 0);
  EXPECT_EQ(PagesPresent(memory_[1], MiB(64)), PagesOf(MiB(64)));
  EXPECT_EQ(PagesPresent(memory_[1] + MiB(64).count(), MiB(72)), 0);
  EXPECT_EQ(PagesPresent(memory_[1] + MiB(136).count(), MiB(64)), PagesOf(MiB(64)));
  EXPECT_EQ(PagesPresent(memory_[1] + MiB(200).count(), MiB(100)), 0);
}

}  // namespace
}  // namespace harmony::swapper
