#include "common/ipc/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "common/ipc/dump.h"
#include "common/ipc/host_memory.h"

namespace harmony::ipc {
namespace {

using testing::HasSubstr;

Segment MakeSegment(Bytes total = MiB(64)) {
  auto segment = Segment::Create(total);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}

SegmentJob MakeJob() {
  SegmentJob job;
  job.id = "job-7";
  job.digest = 0x1234;
  job.record_count = 10;
  job.cursor_count = 3;
  job.extent = MiB(8);
  job.persistent = MiB(6);
  job.text = "a description";
  return job;
}

int64_t AllocatedBytes(int fd) {
  struct stat info {};
  fstat(fd, &info);
  return info.st_blocks * 512;
}

TEST(SegmentTest, OpensAgainFromTheDescriptor) {
  const Segment segment = MakeSegment();
  auto other = Segment::Open(UniqueFd(dup(segment.fd())));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->constants().total_bytes, 64u << 20);
  EXPECT_GT(other->arena_size(), MiB(55));
  EXPECT_LT(AllocatedBytes(segment.fd()), 256 << 10) << "sparse";
}

TEST(SegmentTest, SizesForAnArenaAreTheSmallest) {
  for (Bytes arena : {Bytes(1), KiB(100), MiB(3), MiB(64) + Bytes(1), GiB(3)}) {
    const Bytes size = Segment::SizeFor(arena);
    EXPECT_GE(Segment::CapacityOf(size).arena, arena);
    EXPECT_LT(Segment::CapacityOf(size - Bytes(kSegmentPage)).arena, arena);
    const Segment segment = *Segment::Create(size);
    EXPECT_EQ(segment.arena_size(), Segment::CapacityOf(size).arena);
    EXPECT_EQ(segment.record_capacity(), Segment::CapacityOf(size).records);
    EXPECT_EQ(segment.cursor_capacity(), Segment::CapacityOf(size).cursors);
  }
}

TEST(SegmentTest, TooSmallIsRefused) {
  EXPECT_EQ(Segment::Create(KiB(64)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Segment::Create(GiB(1 << 20)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SegmentTest, CannotBeShrunk) {
  const Segment segment = MakeSegment();
  EXPECT_NE(ftruncate(segment.fd(), 4096), 0);
}

TEST(SegmentTest, AProcessCanGiveUpWritingToAllButSemaphores) {
  Segment owner = MakeSegment();
  ASSERT_TRUE(owner.RaiseGeneration(1).ok() && owner.BeginGeneration(1).ok());
  auto worker = Segment::Open(UniqueFd(dup(owner.fd())));
  ASSERT_TRUE(worker.ok() && worker->KeepOnlySemaphoresWritable().ok());
  // The kernel writes on behalf of a process what the process itself may write, or says so.
  const auto may_write = [&](const Segment& segment, uint64_t offset) {
    std::byte* const base = segment.Arena(Bytes(0)) - segment.constants().data.offset;
    return pread(owner.fd(), base + offset, 1, static_cast<off_t>(offset)) == 1;
  };
  const SegmentConstants& c = owner.constants();
  for (const uint64_t offset : {uint64_t{0}, c.job.offset, c.records.offset, c.cursors.offset,
                                c.data.offset, c.total_bytes - 1}) {
    EXPECT_FALSE(may_write(*worker, offset)) << offset;
    EXPECT_TRUE(may_write(owner, offset)) << offset;
  }
  worker->Semaphore(1, 3).Signal(7);
  EXPECT_EQ(owner.Semaphore(1, 3).value(), 7);
}

struct Damage {
  size_t offset;
  const char* message;
};
class DamagedSegmentTest : public testing::TestWithParam<Damage> {};

TEST_P(DamagedSegmentTest, IsRefusedByName) {
  const Segment segment = MakeSegment();
  const uint8_t flipped = 0x5A;
  ASSERT_EQ(pwrite(segment.fd(), &flipped, 1, static_cast<off_t>(GetParam().offset)), 1);
  const auto opened = Segment::Open(UniqueFd(dup(segment.fd())));
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(opened.status().message(), HasSubstr(GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(Headers, DamagedSegmentTest,
                         testing::Values(Damage{0, "magic"}, Damage{8, "layout version"},
                                         Damage{20, "checksum"}, Damage{100, "checksum"},
                                         Damage{250, "checksum"}));

TEST(SegmentTest, AFileOfZerosOrWrongSizeIsRefused) {
  UniqueFd zeros(memfd_create("zeros", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(zeros.get(), 1 << 20), 0);
  EXPECT_EQ(Segment::Open(std::move(zeros)).status().code(), absl::StatusCode::kDataLoss);

  const Segment segment = MakeSegment();
  UniqueFd copy(memfd_create("copy", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(copy.get(), 1 << 20), 0);
  ASSERT_EQ(pwrite(copy.get(), &segment.constants(), sizeof(SegmentConstants), 0),
            static_cast<ssize_t>(sizeof(SegmentConstants)));
  EXPECT_THAT(std::string(Segment::Open(std::move(copy)).status().message()),
              HasSubstr("the file has"));
  EXPECT_FALSE(Segment::Open(UniqueFd(memfd_create("empty", MFD_CLOEXEC))).ok());
}

TEST(SegmentTest, JobLifeAllocatesAndGivesBack) {
  Segment segment = MakeSegment();
  EXPECT_EQ(segment.ReadJob().status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(segment.AllocateJob(MakeJob()).ok());
  EXPECT_GE(AllocatedBytes(segment.fd()), 8 << 20);
  EXPECT_EQ(AllocatedBytes(segment.fd()), segment.MemoryWith(MakeJob()).count());
  auto job = segment.ReadJob();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->id, "job-7");
  EXPECT_EQ(job->text, "a description");
  EXPECT_EQ(job->persistent, MiB(6));
  EXPECT_EQ(segment.AllocateJob(MakeJob()).code(), absl::StatusCode::kAlreadyExists);

  std::memset(segment.Arena(Bytes(0)), 1, 100);
  segment.Publish(2, {{command::ObjectKind::kGradient, 1, 0},
                      Bytes(64),
                      Bytes(128),
                      1,
                      command::ObjectState::kClean});
  ASSERT_TRUE(segment.ReleaseJob().ok());
  EXPECT_LT(AllocatedBytes(segment.fd()), 256 << 10);
  ASSERT_TRUE(segment.AllocateJob(MakeJob()).ok());
  EXPECT_EQ(*reinterpret_cast<char*>(segment.Arena(Bytes(0))), 0) << "nothing left of the old job";
  EXPECT_EQ(segment.ReadRecord(2)->state, command::ObjectState::kFree);
}

TEST(SegmentTest, AJobTooLargeIsToldByHowMuch) {
  Segment segment = MakeSegment();
  SegmentJob job = MakeJob();
  job.extent = segment.arena_size() + MiB(3);
  const absl::Status status = segment.AllocateJob(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3.00 MiB (3145728 B) are missing"));
  EXPECT_FALSE(segment.ReadJob().ok());
}

TEST(SegmentTest, AJobBeyondTheMachineIsRefusedBeforeAnythingIsTouched) {
  const Bytes available = AvailableHostMemory();
  Segment segment = MakeSegment(available * 3);
  SegmentJob job = MakeJob();
  job.extent = available * 2;
  const absl::Status status = segment.AllocateJob(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are available"));
  EXPECT_LT(AllocatedBytes(segment.fd()), 256 << 10);
}

TEST(SegmentTest, RecordsRoundTrip) {
  Segment segment = MakeSegment();
  ASSERT_TRUE(segment.AllocateJob(MakeJob()).ok());
  const command::ObjectView view{{command::ObjectKind::kBoundaryGradient, 12, 345},
                                 Bytes(4096),
                                 Bytes(100),
                                 77,
                                 command::ObjectState::kClean};
  segment.Publish(4, view);
  const auto read = segment.ReadRecord(4);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->key, view.key);
  EXPECT_EQ(read->offset, view.offset);
  EXPECT_EQ(read->size, view.size);
  EXPECT_EQ(read->version, 77u);
  EXPECT_EQ(read->state, command::ObjectState::kClean);
  segment.SetFree(4);
  EXPECT_EQ(segment.ReadRecord(4)->state, command::ObjectState::kFree);
}

TEST(SegmentTest, ADamagedRecordIsNamed) {
  Segment segment = MakeSegment();
  ASSERT_TRUE(segment.AllocateJob(MakeJob()).ok());
  segment.Publish(
      4,
      {{command::ObjectKind::kBatch, 1, 0}, Bytes(64), Bytes(64), 1, command::ObjectState::kClean});
  const uint8_t flipped = 0x5A;
  const off_t at = static_cast<off_t>(segment.constants().records.offset + 4 * 64 + 8);
  ASSERT_EQ(pwrite(segment.fd(), &flipped, 1, at), 1);
  EXPECT_EQ(segment.ReadRecord(4).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(DumpSegment(segment), HasSubstr("checksum of record 4"));
}

// A reader never sees fields of one version beside the word of another.
TEST(SegmentTest, ReadersSeeWholeRecords) {
  Segment segment = MakeSegment();
  ASSERT_TRUE(segment.AllocateJob(MakeJob()).ok());
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop.load()) {
      const auto view = segment.ReadRecord(0);
      ASSERT_TRUE(view.ok()) << view.status();
      if (view->state == command::ObjectState::kFree) continue;
      ASSERT_EQ(view->offset.count(), static_cast<int64_t>(view->version) * 64);
    }
  });
  for (uint64_t v = 1; v <= 20000; ++v) {
    segment.Publish(0, {{command::ObjectKind::kGradient, 0, 0},
                        Bytes(static_cast<int64_t>(v) * 64),
                        Bytes(64),
                        v,
                        command::ObjectState::kClean});
  }
  stop.store(true);
  reader.join();
}

TEST(SegmentTest, GenerationsRiseAndReleaseOldWaiters) {
  Segment segment = MakeSegment();
  ASSERT_TRUE(segment.RaiseGeneration(1).ok());
  ASSERT_TRUE(segment.BeginGeneration(1).ok());
  EXPECT_EQ(segment.Semaphore(1, 5).value(), 0u);
  segment.Semaphore(1, 5).Signal(2);

  std::thread waiter([&] {
    EXPECT_EQ(segment.Semaphore(1, 5).WaitFor(3, segment.Guard(1)).code(),
              absl::StatusCode::kAborted);
  });
  ASSERT_TRUE(segment.RaiseGeneration(2).ok());
  waiter.join();
  segment.Semaphore(1, 5).Signal(3);  // a straggler does not lower the poisoned value
  EXPECT_EQ(segment.Semaphore(1, 5).WaitFor(3, segment.Guard(1)).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(segment.BeginGeneration(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(segment.RaiseGeneration(1).code(), absl::StatusCode::kFailedPrecondition);
  for (uint32_t g = 2; g <= 12; ++g) {
    ASSERT_TRUE(segment.RaiseGeneration(g).ok());
    ASSERT_TRUE(segment.BeginGeneration(g).ok());
    EXPECT_EQ(segment.prepared_generation(), g);
    for (uint32_t i = 0; i < kSemaphoresPerBank; ++i) {
      ASSERT_EQ(segment.Semaphore(g, i).value(), 0u);
      segment.Semaphore(g, i).Signal(g + i);
    }
  }
}

TEST(SegmentTest, ChunksOfBlocks) {
  EXPECT_EQ(UpdateChunks(1), 1);
  EXPECT_EQ(UpdateChunks(262144), 1);
  EXPECT_EQ(UpdateChunks(262145), 2);
}

TEST(SegmentTest, DumpTellsWhatThereIs) {
  Segment segment = MakeSegment();
  ASSERT_TRUE(segment.AllocateJob(MakeJob()).ok());
  ASSERT_TRUE(segment.RaiseGeneration(3).ok());
  ASSERT_TRUE(segment.BeginGeneration(3).ok());
  segment.Semaphore(3, 17).Signal(42);
  segment.Publish(1, {{command::ObjectKind::kMoment1, 1, 0},
                      Bytes(640),
                      Bytes(64),
                      9,
                      command::ObjectState::kUpdating});
  UpdateCursor* cursor = segment.Cursor(2);
  cursor->target_version = 9;
  cursor->block = 1;
  cursor->chunk = 1;
  cursor->elements = 160;
  cursor->position.store(4);
  const auto text = DumpSegmentFile("/proc/self/fd/" + std::to_string(segment.fd()));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("generation 3, prepared 3"));
  EXPECT_THAT(*text, HasSubstr("17: 42"));
  EXPECT_THAT(*text, HasSubstr("job job-7"));
  EXPECT_THAT(*text, HasSubstr("updating(9) at 640, 64 bytes"));
  EXPECT_THAT(*text, HasSubstr("block 1 chunk 1 to version 9: position 4 of 10"));
}

}  // namespace
}  // namespace harmony::ipc
