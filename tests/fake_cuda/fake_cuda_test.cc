// The fake driver keeps what a real one promises, and finds what a real one would let pass. Through
// LoadDriver, so that this is also a test of common/cuda/driver.h.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/ipc/fd_passing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda/hooks.h"
#include "tests/fake_cuda/region.h"

namespace harmony::fake_cuda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPiece = size_t{2} << 20;

// Page-aligned host memory, which cannot lie within what is registered elsewhere.
class HostMemory {
 public:
  explicit HostMemory(size_t size) : size_(size) {
    bytes_ = static_cast<unsigned char*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~HostMemory() { munmap(bytes_, size_); }
  unsigned char* bytes() const { return bytes_; }

 private:
  size_t size_;
  unsigned char* bytes_;
};

// A context, a stream, registered host memory and a region.
class FakeCudaTest : public ::testing::Test {
 protected:
  // Streams dawdle, so that what does not wait meets poison; `config`: on top of that.
  void Start(const std::string& config = "") {
    FindHooks()->configure(absl::StrCat("max_delay_us=2000,", config).c_str());
    ASSERT_EQ(driver_.CtxCreate(&context_, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(driver_.EventCreate(&event_, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver_.MemHostRegister(host_.bytes(), kPiece, CU_MEMHOSTREGISTER_PORTABLE),
              CUDA_SUCCESS);
    region_ = std::make_unique<Region>(kPiece);
  }
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    ASSERT_NE(FindHooks(), nullptr) << "LD_LIBRARY_PATH has to name the folder of the fake driver";
    TheDriver();
  }
  void TearDown() override {
    if (region_ == nullptr) return;
    FindHooks()->configure("");
    if (driver_.StreamSynchronize(stream_) == CUDA_SUCCESS) {
      EXPECT_EQ(driver_.MemHostUnregister(host_.bytes()), CUDA_SUCCESS);
    }
    region_.reset();
    EXPECT_EQ(driver_.CtxDestroy(context_), CUDA_SUCCESS);
  }

  CUresult ToDevice(const void* from, size_t bytes, size_t at = 0) {
    return driver_.MemcpyHtoDAsync(region_->address() + at, from, bytes, stream_);
  }
  CUresult ToHost(void* to, size_t bytes, size_t at = 0) {
    return driver_.MemcpyDtoHAsync(to, region_->address() + at, bytes, stream_);
  }

  const cuda::Driver& driver_ = TheDriver();
  HostMemory host_{kPiece};
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::unique_ptr<Region> region_;
};
using FakeCudaDeathTest = FakeCudaTest;

// Accesses that race with a copy on purpose: not for ThreadSanitizer, which would find them.
__attribute__((no_sanitize("thread"))) unsigned char Peek(const volatile unsigned char* byte) {
  return *byte;
}
__attribute__((no_sanitize("thread"))) void Poke(volatile unsigned char* bytes, size_t size,
                                                 unsigned char value) {
  for (size_t i = 0; i < size; ++i) bytes[i] = value;
}

// What `call` writes to stderr.
template <typename Call>
std::string Said(Call call) {
  testing::internal::CaptureStderr();
  call();
  return testing::internal::GetCapturedStderr();
}

TEST_F(FakeCudaTest, DescribesItsDevices) {
  FindHooks()->configure("devices=2,memory=64MiB,peers=1");
  int count = 0, value = 0, can = 0;
  char text[64] = {};
  CUuuid first = {}, second = {};
  size_t total = 0;
  EXPECT_EQ(driver_.DeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(driver_.DeviceGet(&count, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(driver_.DeviceGetName(text, sizeof(text), 1), CUDA_SUCCESS);
  EXPECT_STREQ(text, "Fake GPU");
  EXPECT_EQ(driver_.DeviceGetPCIBusId(text, sizeof(text), 1), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000:02:00.0");
  EXPECT_EQ(driver_.DeviceGetUuid(&first, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.DeviceGetUuid(&second, 1), CUDA_SUCCESS);
  EXPECT_NE(memcmp(&first, &second, sizeof(first)), 0);
  EXPECT_EQ(driver_.DeviceTotalMem(&total, 0), CUDA_SUCCESS);
  EXPECT_EQ(total, size_t{64} << 20);
  EXPECT_EQ(driver_.DeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  for (const auto& [attribute, wanted] : std::vector<std::pair<CUdevice_attribute, int>>{
           {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
           {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
           {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
           {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
           {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0}}) {
    EXPECT_EQ(driver_.DeviceGetAttribute(&value, attribute, 0), CUDA_SUCCESS);
    EXPECT_EQ(value, wanted) << attribute;
  }
}

TEST_F(FakeCudaTest, MemoryIsBounded) {
  FindHooks()->configure("memory=8MiB,context=2MiB");
  const CUmemAllocationProp properties = PropertiesFor(0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(driver_.MemCreate(&handle, kPiece + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.MemCreate(&handle, 5 * kPiece, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  // No context is needed for memory, only for asking how much there is.
  size_t free = 0, total = 0;
  EXPECT_EQ(driver_.MemGetInfo(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  {
    Region region(2 * kPiece);
    CUcontext context = nullptr;
    ASSERT_EQ(driver_.CtxCreate(&context, nullptr, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.MemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, 4 * kPiece);
    EXPECT_EQ(free, kPiece);
    EXPECT_EQ(driver_.MemCreate(&handle, 2 * kPiece, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(driver_.CtxDestroy(context), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver_.MemCreate(&handle, 4 * kPiece, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, FreshMemoryIsPoison) {
  FindHooks()->configure("");
  Region region(kPiece);
  EXPECT_TRUE(std::all_of(region.bytes(), region.bytes() + kPiece,
                          [](unsigned char byte) { return byte == 0xFF; }));
}

TEST_F(FakeCudaTest, MappingFollowsTheRules) {
  FindHooks()->configure("");
  const CUmemAllocationProp properties = PropertiesFor(0);
  const CUmemAccessDesc access = AccessOf(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  ASSERT_EQ(driver_.MemCreate(&handle, kPiece, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver_.MemAddressReserve(&at, 2 * kPiece, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(at % kPiece, 0);
  EXPECT_EQ(driver_.MemMap(at + 2 * kPiece, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.MemSetAccess(at, kPiece, &access, 1), CUDA_ERROR_INVALID_VALUE);
  // The same memory twice, under both addresses.
  EXPECT_EQ(driver_.MemMap(at, kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemMap(at, kPiece, 0, handle, 0), CUDA_ERROR_ALREADY_MAPPED);
  EXPECT_EQ(driver_.MemMap(at + kPiece, kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemSetAccess(at, 2 * kPiece, &access, 1), CUDA_SUCCESS);
  auto* const bytes = reinterpret_cast<unsigned char*>(at);
  bytes[5] = 7;
  EXPECT_EQ(bytes[kPiece + 5], 7);
  // Memory lives as long as it is mapped, without its handle, too.
  EXPECT_EQ(driver_.MemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemUnmap(at, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(bytes[kPiece + 5], 7);
  EXPECT_EQ(driver_.MemAddressFree(at, 2 * kPiece), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.MemUnmap(at + kPiece, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemAddressFree(at, 2 * kPiece), CUDA_SUCCESS);
}

// A number that the process of EXPECT_EXIT inherits.
constexpr int kInheritedSocket = 100;

void MakeRegionAndExit() {
  setenv("FAKE_CUDA", "devices=2", 1);
  FindHooks()->configure("devices=2");
  Region region(kPiece, 1);
  strcpy(reinterpret_cast<char*>(region.bytes()), "still here");
  _exit(ipc::SendAnswer(kInheritedSocket, "region", region.Export()).ok() ? 0 : 1);
}

TEST_F(FakeCudaDeathTest, RegionsOutliveTheirMaker) {
  FindHooks()->configure("devices=2");
  int ends[2] = {-1, -1};
  // The process of EXPECT_EXIT comes by here, too, and has to keep what it inherited.
  if (fcntl(kInheritedSocket, F_GETFD) < 0) {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ASSERT_EQ(dup2(ends[1], kInheritedSocket), kInheritedSocket);
  }
  EXPECT_EXIT(MakeRegionAndExit(), ::testing::ExitedWithCode(0), "");
  const auto answer = ipc::ReceiveAnswer(ends[0]);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_TRUE(answer->fd.valid());
  {
    const Region region = Region::Import(answer->fd.get(), kPiece, 1);
    EXPECT_STREQ(reinterpret_cast<const char*>(region.bytes()), "still here");
    // An own export finds the same memory again.
    const int own = region.Export();
    const Region again = Region::Import(own, kPiece, 1);
    region.bytes()[0] = 'S';
    EXPECT_EQ(again.bytes()[0], 'S');
    close(own);
  }
  for (const int used : {ends[0], ends[1], kInheritedSocket}) close(used);
}

TEST_F(FakeCudaTest, OnlyItsOwnMemoryIsImported) {
  FindHooks()->configure("");
  const int fd = memfd_create("something else", MFD_CLOEXEC);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(driver_.MemImportFromShareableHandle(&handle,
                                                 reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
  close(fd);
}

TEST_F(FakeCudaTest, ContextsAreOfThreads) {
  Start();
  CUstream other = nullptr;
  std::thread([&] {
    EXPECT_EQ(driver_.StreamCreate(&other, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver_.CtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(driver_.StreamCreate(&other, 0), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(driver_.StreamDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(driver_.StreamDestroy(other), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver_.EventQuery(reinterpret_cast<CUevent>(stream_)), CUDA_ERROR_INVALID_HANDLE);

  CUcontext primary = nullptr, same = nullptr;
  EXPECT_EQ(driver_.DevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.DevicePrimaryCtxRetain(&same, 0), CUDA_SUCCESS);
  EXPECT_EQ(primary, same);
  EXPECT_EQ(driver_.CtxSetCurrent(primary), CUDA_SUCCESS);
  EXPECT_EQ(driver_.StreamCreate(&other, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.EventRecord(event_, other), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver_.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.StreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(driver_.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.StreamSynchronize(other), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(driver_.CtxSetCurrent(context_), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, CopiesReadLateAndWritePoisonFirst) {
  // Drawn with this seed, copies to the host hold poison for long enough to be seen.
  Start("max_delay_us=100000,seed=31");
  memset(host_.bytes(), 1, kPiece);
  ASSERT_EQ(ToDevice(host_.bytes(), 4096), CUDA_SUCCESS);
  Poke(host_.bytes(), 4096, 2);
  EXPECT_EQ(Peek(region_->bytes()), 0xFF);
  ASSERT_EQ(driver_.StreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(region_->bytes()[0], 2);

  ASSERT_EQ(driver_.MemsetD8Async(region_->address() + 4096, 3, 4096, stream_), CUDA_SUCCESS);
  ASSERT_EQ(
      driver_.MemcpyDtoDAsync(region_->address() + 8192, region_->address() + 4096, 4096, stream_),
      CUDA_SUCCESS);
  ASSERT_EQ(ToHost(host_.bytes() + 8192, 4096, 8192), CUDA_SUCCESS);
  ASSERT_EQ(driver_.EventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(driver_.EventQuery(event_), CUDA_ERROR_NOT_READY);
  // Zeros as before, then poison.
  bool poison = false;
  while (driver_.EventQuery(event_) == CUDA_ERROR_NOT_READY) {
    poison = poison || Peek(host_.bytes() + 8192) == 0xFF;
  }
  EXPECT_TRUE(poison);
  EXPECT_EQ(host_.bytes()[8192], 3);
}

TEST_F(FakeCudaTest, EventsMeasureTime) {
  Start();
  CUevent end = nullptr, untimed = nullptr;
  float milliseconds = -1;
  ASSERT_EQ(driver_.EventCreate(&end, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver_.EventCreate(&untimed, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(driver_.EventQuery(event_), CUDA_SUCCESS);
  EXPECT_EQ(driver_.EventElapsedTime(&milliseconds, event_, end), CUDA_ERROR_INVALID_HANDLE);
  for (const CUevent event : {event_, untimed, end}) {
    ASSERT_EQ(driver_.EventRecord(event, stream_), CUDA_SUCCESS);
    ASSERT_EQ(driver_.MemsetD8Async(region_->address(), 3, 4096, stream_), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver_.EventElapsedTime(&milliseconds, event_, end), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(driver_.StreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(driver_.EventElapsedTime(&milliseconds, event_, end), CUDA_SUCCESS);
  EXPECT_GT(milliseconds, 0);
  EXPECT_EQ(driver_.EventElapsedTime(&milliseconds, event_, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCudaTest, HostMemoryOfCopiesIsPinned) {
  Start();
  HostMemory more(2 * kPiece);
  const auto refused = [&](const void* from, size_t bytes) {
    return Said([&] { EXPECT_EQ(ToDevice(from, bytes), CUDA_ERROR_INVALID_VALUE); });
  };
  EXPECT_THAT(refused(more.bytes(), 4096), HasSubstr("is not pinned"));
  mprotect(more.bytes() + kPiece, kPiece, PROT_READ);
  EXPECT_EQ(driver_.MemHostRegister(more.bytes(), 2 * kPiece, 0), CUDA_ERROR_INVALID_VALUE);
  mprotect(more.bytes() + kPiece, kPiece, PROT_READ | PROT_WRITE);
  ASSERT_EQ(driver_.MemHostRegister(more.bytes(), kPiece, 0), CUDA_SUCCESS);
  EXPECT_THAT(refused(more.bytes() + kPiece - 4096, 8192), HasSubstr("not pinned as a whole"));
  ASSERT_EQ(driver_.MemHostRegister(more.bytes() + kPiece, kPiece, 0), CUDA_SUCCESS);
  EXPECT_THAT(refused(more.bytes() + kPiece - 4096, 8192), HasSubstr("spans two registrations"));
  EXPECT_EQ(ToDevice(more.bytes() + kPiece, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemHostRegister(more.bytes() + 4096, 4096, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  ASSERT_EQ(driver_.StreamSynchronize(stream_), CUDA_SUCCESS);

  // Not portable: not for other contexts.
  CUcontext other = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(driver_.CtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver_.StreamCreate(&stream, 0), CUDA_SUCCESS);
  std::swap(stream, stream_);
  EXPECT_THAT(refused(more.bytes(), 4096), HasSubstr("not pinned for this context"));
  EXPECT_EQ(ToDevice(host_.bytes(), 4096), CUDA_SUCCESS);
  ASSERT_EQ(driver_.StreamSynchronize(stream_), CUDA_SUCCESS);
  std::swap(stream, stream_);
  ASSERT_EQ(driver_.CtxDestroy(other), CUDA_SUCCESS);

  ASSERT_EQ(driver_.CtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemHostUnregister(more.bytes() + 4096), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(driver_.MemHostUnregister(more.bytes()), CUDA_SUCCESS);
  EXPECT_EQ(driver_.MemHostUnregister(more.bytes() + kPiece), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, PageableCopiesMayBeStaged) {
  Start("pageable=stage");
  HostMemory pageable(4096);
  memset(pageable.bytes(), 5, 4096);
  ASSERT_EQ(ToDevice(pageable.bytes(), 4096), CUDA_SUCCESS);
  EXPECT_EQ(region_->bytes()[0], 5);
}

TEST_F(FakeCudaTest, DeviceMemoryOfCopiesIsAccessible) {
  Start("devices=2,peers=1");
  Region far(kPiece, 1);
  const auto copy = [&] {
    return driver_.MemcpyDtoDAsync(far.address(), region_->address(), 4096, stream_);
  };
  const auto refused = [&](auto call) {
    return Said([&] { EXPECT_EQ(call(), CUDA_ERROR_INVALID_VALUE); });
  };
  EXPECT_THAT(refused(copy), HasSubstr("without cuMemSetAccess for device 0"));
  CUmemAccessDesc access = AccessOf(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_EQ(driver_.MemSetAccess(far.address(), kPiece, &access, 1), CUDA_SUCCESS);
  EXPECT_THAT(refused(copy), HasSubstr("read-only for device 0"));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(driver_.MemSetAccess(far.address(), kPiece, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(copy(), CUDA_SUCCESS);
  EXPECT_THAT(refused([&] { return ToDevice(host_.bytes(), 8192, kPiece - 4096); }),
              HasSubstr("is not mapped from"));
  ASSERT_EQ(driver_.StreamSynchronize(stream_), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, CallsFailAsConfigured) {
  Start("fail=MemcpyHtoDAsync:2:700;cuEventQuery:0:2");
  EXPECT_EQ(driver_.EventQuery(event_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(driver_.EventQuery(event_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(ToDevice(host_.bytes(), 4096), CUDA_SUCCESS);
  ASSERT_EQ(driver_.StreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(ToDevice(host_.bytes(), 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
  // That one leaves the context useless, and no other.
  EXPECT_EQ(ToDevice(host_.bytes(), 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(driver_.StreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUcontext other = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(driver_.CtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.StreamCreate(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.CtxDestroy(other), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, BrokenContextsMayBeCleanedUp) {
  Start("max_delay_us=5000,fail=MemsetD8Async:1:719");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(ToDevice(host_.bytes(), 4096), CUDA_SUCCESS);
  CUresult waited = CUDA_SUCCESS;
  std::thread waits([&] {
    EXPECT_EQ(driver_.CtxSetCurrent(context_), CUDA_SUCCESS);
    waited = driver_.StreamSynchronize(stream_);
  });
  usleep(2000);
  EXPECT_EQ(driver_.MemsetD8Async(region_->address(), 0, 4096, stream_), CUDA_ERROR_LAUNCH_FAILED);
  waits.join();
  EXPECT_EQ(waited, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(driver_.MemHostUnregister(host_.bytes()), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(FakeCudaDeathTest, MemoryInUseIsNotTakenAway) {
  const auto begin = [this] {
    Start("max_delay_us=1000000,seed=3");
    ASSERT_EQ(ToDevice(host_.bytes(), 4096), CUDA_SUCCESS);
  };
  EXPECT_DEATH((begin(), driver_.MemHostUnregister(host_.bytes())),
               "fake_cuda: cuMemHostUnregister of .* while cuMemcpyHtoDAsync of 4096 bytes");
  EXPECT_DEATH((begin(), driver_.MemUnmap(region_->address(), kPiece)), "fake_cuda: cuMemUnmap of");
  EXPECT_DEATH((begin(), driver_.StreamDestroy(stream_)), "fake_cuda: cuStreamDestroy of stream");
  EXPECT_DEATH((begin(), driver_.CtxDestroy(context_)), "fake_cuda: cuCtxDestroy of stream");
}

TEST_F(FakeCudaDeathTest, AProcessMayEndAtAnyTime) {
  const auto end = [this] {
    Start("max_delay_us=1000000,seed=3");
    for (int i = 0; i < 10; ++i) ASSERT_EQ(ToDevice(host_.bytes(), 4096), CUDA_SUCCESS);
    exit(0);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(0), "");
}

TEST_F(FakeCudaTest, ForkedProcessesHaveNoDriver) {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(driver_.DeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace harmony::fake_cuda
