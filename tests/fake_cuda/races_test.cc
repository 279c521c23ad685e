// The race detector finds what is not ordered, and only that.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda/hooks.h"
#include "tests/fake_cuda/region.h"

namespace harmony::fake_cuda {
namespace {

constexpr size_t kPiece = size_t{2} << 20;
constexpr size_t kSome = 4096;

// What one process has to do with the driver: a context, two streams, an event, shared host memory.
class Side {
 public:
  // `host_fd`: a file of kPiece.
  explicit Side(int host_fd) {
    host_ = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, host_fd, 0);
    Expect(driver_.CtxCreate(&context_, nullptr, 0, 0));
    Expect(driver_.StreamCreate(&first_, 0));
    Expect(driver_.StreamCreate(&second_, 0));
    Expect(driver_.EventCreate(&event_, 0));
    Expect(driver_.MemHostRegister(host_, kPiece, CU_MEMHOSTREGISTER_PORTABLE));
  }
  ~Side() {
    Wait(first_);
    Wait(second_);
    Expect(driver_.MemHostUnregister(host_));
    Expect(driver_.CtxDestroy(context_));
    munmap(host_, kPiece);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void ToDevice(const Region& region, CUstream stream) {
    Expect(driver_.MemcpyHtoDAsync(region.address(), host_, kSome, stream));
  }
  void ToHost(const Region& region, CUstream stream, size_t at = 0) {
    Expect(
        driver_.MemcpyDtoHAsync(static_cast<char*>(host_) + at, region.address(), kSome, stream));
  }
  void Record(CUstream stream) { Expect(driver_.EventRecord(event_, stream)); }
  void WaitForEvent() {
    while (driver_.EventQuery(event_) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
  }
  void Wait(CUstream stream) { Expect(driver_.StreamSynchronize(stream)); }
  void Cpu(bool write, const void* begin, const char* what = "a test") {
    FindHooks()->access(begin, kSome, write, what);
  }
  void EnterThread() { Expect(driver_.CtxSetCurrent(context_)); }

  CUstream first() const { return first_; }
  CUstream second() const { return second_; }
  void* host() const { return host_; }

 private:
  static void Expect(CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); }

  const cuda::Driver& driver_ = TheDriver();
  void* host_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream first_ = nullptr;
  CUstream second_ = nullptr;
  CUevent event_ = nullptr;
};

int HostFile() {
  const int fd = memfd_create("host", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, kPiece), 0);
  return fd;
}

class RacesDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    ASSERT_NE(FindHooks(), nullptr) << "LD_LIBRARY_PATH has to name the folder of the fake driver";
    TheDriver();
    FindHooks()->configure("max_delay_us=500");
    side_ = std::make_unique<Side>(host_fd_);
    region_ = std::make_unique<Region>(kPiece);
  }
  void TearDown() override {
    side_.reset();
    region_.reset();
    close(host_fd_);
  }

  // In another thread of this process, to its end.
  template <typename Call>
  void InThread(Call call) {
    std::thread([&] {
      side_->EnterThread();
      call();
    }).join();
  }

  const int host_fd_ = HostFile();
  std::unique_ptr<Side> side_;
  std::unique_ptr<Region> region_;
};

TEST_F(RacesDeathTest, StreamsAreOrderedByTheirOwnOrderAndByWaits) {
  side_->Cpu(true, side_->host());
  side_->ToDevice(*region_, side_->first());
  side_->ToDevice(*region_, side_->first());
  // Two that read.
  side_->ToDevice(*region_, side_->first());
  side_->Cpu(false, side_->host());
  side_->Record(side_->first());
  side_->WaitForEvent();
  side_->ToHost(*region_, side_->second());
  side_->Wait(side_->second());
  side_->Cpu(true, side_->host());
  side_->Cpu(true, region_->bytes());
}

TEST_F(RacesDeathTest, StreamsDoNotWaitForEachOther) {
  side_->ToDevice(*region_, side_->first());
  EXPECT_DEATH(side_->ToHost(*region_, side_->second()),
               "fake_cuda: race: cuMemcpyDtoHAsync .stream 2 of process .*reads.*"
               "not ordered after cuMemcpyHtoDAsync .stream 1 of process .*writes");
  // Records made before a copy say nothing of it.
  side_->Wait(side_->first());
  side_->Record(side_->first());
  side_->ToDevice(*region_, side_->first());
  side_->WaitForEvent();
  EXPECT_DEATH(side_->ToHost(*region_, side_->second(), kSome), "fake_cuda: race");
}

TEST_F(RacesDeathTest, TheCpuDoesNotWaitForStreams) {
  side_->ToDevice(*region_, side_->first());
  // Even where the copy has long been made.
  usleep(5000);
  EXPECT_DEATH(side_->Cpu(false, region_->bytes(), "optimizer step"), "race: optimizer step");
  EXPECT_DEATH(side_->Cpu(true, side_->host()), "race: a test .* writes .* cuMemcpyHtoDAsync");
  side_->Cpu(false, side_->host());
  side_->Cpu(true, region_->bytes() + kSome);
}

TEST_F(RacesDeathTest, MemoryIsTakenAwayAfterAWait) {
  side_->ToDevice(*region_, side_->first());
  // The copy is made by then, but nobody knows.
  usleep(20000);
  EXPECT_DEATH(TheDriver().MemHostUnregister(side_->host()),
               "race: cuMemHostUnregister .* takes memory away");
}

TEST_F(RacesDeathTest, MemoryIsKnownByWhatItIsAndNotByItsAddress) {
  const int fd = region_->Export();
  {
    const Region again = Region::Import(fd, kPiece);
    side_->ToDevice(*region_, side_->first());
    EXPECT_DEATH(side_->Cpu(false, again.bytes()), "fake_cuda: race");
    void* const other = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, host_fd_, 0);
    EXPECT_DEATH(side_->Cpu(true, other), "fake_cuda: race");
    munmap(other, kPiece);
  }
  close(fd);
}

TEST_F(RacesDeathTest, ThreadsAreOneUnlessToldApart) {
  side_->ToDevice(*region_, side_->first());
  side_->Record(side_->first());
  InThread([&] { side_->WaitForEvent(); });
  side_->Cpu(false, region_->bytes());
}

TEST_F(RacesDeathTest, ThreadsToldApartAreOrderedByReleaseAndAcquire) {
  FindHooks()->configure("races=threads,max_delay_us=500");
  side_->ToDevice(*region_, side_->first());
  side_->Record(side_->first());
  InThread([&] {
    side_->WaitForEvent();
    FindHooks()->release(7);
  });
  FindHooks()->acquire(8);
  EXPECT_DEATH(side_->Cpu(false, region_->bytes()), "race: .* .thread ");
  FindHooks()->acquire(7);
  side_->Cpu(false, region_->bytes());
}

// Two processes with one host file, as the parent and the child of a fork before which neither has
// a driver. `ordered`: the child tells the parent by a key, too.
void ShareMemory(bool ordered) {
  char path[] = "/tmp/harmony_races_XXXXXX";
  close(mkstemp(path));
  setenv("FAKE_CUDA", absl::StrCat("shared=", path).c_str(), 1);
  const int host_fd = HostFile();
  int done[2], end[2];
  if (pipe(done) != 0 || pipe(end) != 0) abort();
  const pid_t child = fork();
  char byte = 0;
  if (child == 0) {
    close(end[1]);
    TheDriver();
    Side side(host_fd);
    const Region region(kPiece);
    side.ToHost(region, side.first());
    side.Wait(side.first());
    if (ordered) FindHooks()->release(1);
    if (write(done[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 0) abort();
    _exit(0);
  }
  close(done[1]);
  TheDriver();
  Side side(host_fd);
  const Region region(kPiece);
  if (read(done[0], &byte, 1) != 1) abort();
  unlink(path);
  if (ordered) FindHooks()->acquire(1);
  side.ToDevice(region, side.first());
  side.Wait(side.first());
  close(end[1]);
  waitpid(child, nullptr, 0);
  _exit(0);
}

TEST(SharedRacesDeathTest, ProcessesAreOrderedByKeys) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ShareMemory(true), ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(ShareMemory(false),
               "race: cuMemcpyHtoDAsync .* reads .* not ordered after cuMemcpyDtoHAsync");
}

}  // namespace
}  // namespace harmony::fake_cuda
