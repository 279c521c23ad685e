#include "swapper/transfer/cuda_copier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/command/lane_kinds.h"
#include "tests/fake_cuda/hooks.h"

namespace harmony::swapper {
namespace {

constexpr char kDevices[] = "cuda:0,mem=2MiB;cuda:1,mem=2MiB";
constexpr Bytes kArena = KiB(64), kHalf = KiB(32), kChunk = KiB(16), kBounce = KiB(4);

// Two GPUs whose streams dawdle, and an arena of several chunks.
class CudaCopierTest : public ::testing::Test {
 protected:
  void Open(const std::string& config) {
    fake_cuda::FindHooks()->configure(
        absl::StrCat("devices=2,memory=64MiB,max_delay_us=500,", config).c_str());
    driver_ = *cuda::LoadDriver();
    ASSERT_EQ(driver_->Init(0), CUDA_SUCCESS);
    const auto devices = *plan::ParseDevices(kDevices);
    for (const plan::DeviceSpec& device : devices) {
      regions_.push_back(*cuda::CreateRegion(*driver_, device.cuda_ordinal, device.memory));
    }
    arena_ = static_cast<std::byte*>(
        mmap(nullptr, kArena.count(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int64_t i = 0; i < kArena.count(); ++i) arena_[i] = static_cast<std::byte>(i * 7 / 3);
    copier_ = CopierOf({0, 1}, false);
  }
  std::unique_ptr<CudaCopier> CopierOf(std::vector<int> of_devices, bool in_compute_context) {
    const auto devices = *plan::ParseDevices(kDevices);
    std::vector<int> fds;
    for (const ipc::UniqueFd& region : regions_) fds.push_back(region.get());
    auto copier = CudaCopier::Create(*driver_, arena_, devices, fds,
                                     {.of_devices = std::move(of_devices),
                                      .in_compute_context = in_compute_context,
                                      .chunk = kChunk,
                                      .bounce = kBounce});
    EXPECT_TRUE(copier.ok()) << copier.status();
    return copier.ok() ? *std::move(copier) : nullptr;
  }
  void TearDown() override {
    other_.reset();
    copier_.reset();
    if (arena_ != nullptr) munmap(arena_, kArena.count());
  }

  absl::Status Copy(command::LaneKind lane, int device, int from, Bytes from_offset, int to,
                    Bytes to_offset, Bytes size) {
    CudaCopier& copier = device == 1 && other_ != nullptr ? *other_ : *copier_;
    return copier.Run({command::LaneTable(2).IndexOf({lane, device}),
                       {from, from_offset, size},
                       {to, to_offset, size}});
  }
  // In, across and back out into the upper half of the arena.
  absl::Status RoundTrip(Bytes from, Bytes size) {
    absl::Status status = Copy(command::LaneKind::kH2DBulk, 0, -1, from, 0, Bytes(256), size);
    status.Update(Copy(command::LaneKind::kP2P, 0, 0, Bytes(256), 1, Bytes(512), size));
    status.Update(Copy(command::LaneKind::kD2H, 1, 1, Bytes(512), -1, kHalf + from, size));
    return status;
  }
  bool Arrived(Bytes from, Bytes size) const {
    return std::memcmp(arena_ + from.count(), arena_ + (kHalf + from).count(),
                       static_cast<size_t>(size.count())) == 0;
  }

  const cuda::Driver* driver_ = nullptr;
  std::vector<ipc::UniqueFd> regions_;
  std::byte* arena_ = nullptr;
  std::unique_ptr<CudaCopier> copier_;
  std::unique_ptr<CudaCopier> other_;  // of the second device's lanes, where that has its own
};

// Pieces that end at, before and behind the end of a chunk, and of the buffers between GPUs.
TEST_F(CudaCopierTest, EveryByteArrivesHoweverACopyLiesToTheChunks) {
  for (const char* peers : {"peers=0", "peers=1"}) {
    Open(peers);
    ASSERT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok());
    for (const Bytes from : {Bytes(0), kChunk - Bytes(1), kChunk, KiB(3)}) {
      for (const Bytes size : {Bytes(1), Bytes(2), kBounce, kBounce * 3 + KiB(2), kChunk}) {
        std::memset(arena_ + kHalf.count(), 0, kHalf.count());
        ASSERT_EQ(RoundTrip(from, size), absl::OkStatus()) << peers << from.count();
        EXPECT_TRUE(Arrived(from, size)) << peers << " " << from.count() << " " << size.count();
      }
    }
    EXPECT_EQ(copier_->ReachesPeer(0, 1), std::string(peers) == "peers=1");
    EXPECT_TRUE(copier_->EndJob().ok());
    TearDown();
    regions_.clear();
  }
}

// Each worker for its device; on GPUs that reach each other no context is made beside theirs.
TEST_F(CudaCopierTest, WorkersCopyInTheContextsThatTheyComputeIn) {
  for (const char* peers : {"peers=0", "peers=1,fail=CtxCreate:3:2"}) {
    Open(peers);
    copier_ = CopierOf({0}, true);
    other_ = CopierOf({1}, true);
    ASSERT_TRUE(copier_ != nullptr && other_ != nullptr);
    ASSERT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok());
    EXPECT_EQ(RoundTrip(KiB(3), kBounce * 3), absl::OkStatus()) << peers;
    EXPECT_TRUE(Arrived(KiB(3), kBounce * 3)) << peers;
    TearDown();
    regions_.clear();
  }
}

TEST_F(CudaCopierTest, AFailedPieceEndsTheCopyWithNothingUnderWay) {
  Open("peers=0,fail=MemcpyHtoDAsync:3:1");
  ASSERT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok());
  // The first goes in; the second is the second buffer's on the way across.
  EXPECT_EQ(RoundTrip(Bytes(0), kBounce * 3).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(RoundTrip(Bytes(0), kBounce * 3), absl::OkStatus());
  EXPECT_TRUE(Arrived(Bytes(0), kBounce * 3));
}

TEST_F(CudaCopierTest, PinsForEachJobAnewAndUpToWhatIsRefused) {
  Open("pageable=stage,fail=MemHostRegister:6:801");
  ASSERT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok());
  ASSERT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok()) << "a job set up a second time";
  EXPECT_EQ(RoundTrip(Bytes(0), kHalf), absl::OkStatus());
  EXPECT_TRUE(Arrived(Bytes(0), kHalf));
  EXPECT_TRUE(copier_->EndJob().ok());
  EXPECT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok());
}

// Its next job would be copied to and from pages that the arena no longer has.
TEST_F(CudaCopierTest, MemoryThatIsNotLetGoOfEndsTheProcess) {
  Open("fail=MemHostUnregister:2:201");
  ASSERT_TRUE(copier_->BeginJob(plan::Plan(), kArena).ok());
  EXPECT_EQ(copier_->EndJob().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(copier_->BeginJob(plan::Plan(), kArena).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace harmony::swapper
