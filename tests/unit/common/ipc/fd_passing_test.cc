#include "common/ipc/fd_passing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/unit/common/ipc/memory_flags.h"

namespace harmony::ipc {
namespace {

TEST(FdPassingTest, DeviceListRoundTrips) {
  const auto parsed = ParseDeviceFds(FormatDeviceFds({{0, 6}, {3, 12}}));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, (std::vector<std::pair<int, int>>{{0, 6}, {3, 12}}));
  for (const char* bad : {"x", "1", "1:", "1:-2", ":3", "1:2,zz"}) {
    EXPECT_FALSE(ParseDeviceFds(bad).ok()) << bad;
  }
}

TEST(FdPassingTest, InheritanceTakesTheDescriptorAndClosesItOnExec) {
  auto region = CreateDeviceRegion(1, MiB(1));
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_TRUE(AllowInheritance(region->get()).ok());
  setenv(kDeviceFdsVariable, FormatDeviceFds({{1, region->get()}}).c_str(), 1);
  auto taken = InheritedDeviceFds();
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ((*taken)[0].device, 1);
  EXPECT_TRUE(fcntl((*taken)[0].fd.get(), F_GETFD) & FD_CLOEXEC);
  region->Release();  // owned by `taken` now
  unsetenv(kDeviceFdsVariable);
}

TEST(FdPassingTest, MissingOrClosedDescriptorsAreNamed) {
  unsetenv(kSegmentFdVariable);
  EXPECT_EQ(InheritedSegmentFd().status().code(), absl::StatusCode::kFailedPrecondition);
  setenv(kSegmentFdVariable, "987", 1);
  EXPECT_EQ(InheritedSegmentFd().status().code(), absl::StatusCode::kFailedPrecondition);
  unsetenv(kSegmentFdVariable);
}

TEST(FdPassingTest, AnAnswerArrivesWholeWithItsDescriptorOrNotAtAll) {
  auto socket = MakeAnswerSocket();
  ASSERT_TRUE(socket.ok()) << socket.status();
  auto region = CreateDeviceRegion(0, MiB(1));
  ASSERT_TRUE(SendAnswer(socket->answerer.get(), "here", region->get()).ok());
  ASSERT_TRUE(SendAnswer(socket->answerer.get(), std::string(kMostAnswer, 'x')).ok());
  socket->answerer.Reset();
  const auto first = ReceiveAnswer(socket->asker.get());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->text, "here");
  EXPECT_TRUE(MappedRegion::Map(first->fd.get(), MiB(1)).ok());
  const auto second = ReceiveAnswer(socket->asker.get());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->text.size(), kMostAnswer);
  EXPECT_FALSE(second->fd.valid());
  EXPECT_EQ(ReceiveAnswer(socket->asker.get()).status().code(), absl::StatusCode::kUnavailable);
}

TEST(FdPassingTest, SharedMemoryIsNotInCoreDumps) {
  const auto fd = CreateDeviceRegion(0, MiB(1));
  ASSERT_TRUE(fd.ok()) << fd.status();
  const auto region = MappedRegion::Map(fd->get());
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_THAT(MemoryFlags(region->data()), ::testing::HasSubstr("dd"));
}

TEST(FdPassingTest, ADeviceRegionKeepsItsSizeAndIsSharedWithAChild) {
  auto region = CreateDeviceRegion(0, MiB(2));
  ASSERT_TRUE(region.ok());
  EXPECT_NE(ftruncate(region->get(), 1), 0);
  EXPECT_NE(ftruncate(region->get(), 1 << 22), 0);
  EXPECT_EQ(MappedRegion::Map(region->get(), MiB(3)).status().code(), absl::StatusCode::kDataLoss);
  auto map = MappedRegion::Map(region->get(), MiB(2));
  ASSERT_TRUE(map.ok());
  const pid_t child = fork();
  if (child == 0) {
    map->data()[1000] = std::byte{7};
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(map->data()[1000], std::byte{7});
}

}  // namespace
}  // namespace harmony::ipc
