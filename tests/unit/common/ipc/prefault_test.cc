#include "common/ipc/prefault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "common/ipc/fd_passing.h"

namespace harmony::ipc {
namespace {

constexpr int64_t kPages = 3 * 4096 + 7;  // not a whole number of the chunks it works in
constexpr int64_t kPage = 4096;

int64_t PagesPresent(const MappedRegion& region) {
  std::vector<unsigned char> present(region.size().count() / kPage);
  EXPECT_EQ(mincore(region.data(), static_cast<size_t>(region.size().count()), present.data()), 0);
  return std::count_if(present.begin(), present.end(), [](unsigned char c) { return c & 1; });
}

TEST(PrefaultTest, AllPagesComeWithoutBeingTouched) {
  const auto fd = CreateDeviceRegion(0, Bytes(kPages * kPage));
  ASSERT_TRUE(fd.ok());
  const auto region = MappedRegion::Map(fd->get());
  ASSERT_TRUE(region.ok());
  if (madvise(region->data(), kPage, MADV_POPULATE_WRITE) != 0) {
    GTEST_SKIP() << "this kernel has no MADV_POPULATE_WRITE";
  }
  EXPECT_EQ(PagesPresent(*region), 1);
  Prefault prefault;
  prefault.Start(region->data(), region->size());
  while (PagesPresent(*region) < kPages) std::this_thread::yield();
  prefault.Stop();
}

TEST(PrefaultTest, StopsBeforeTheMemoryGoes) {
  const auto fd = CreateDeviceRegion(0, Bytes(int64_t{256} << 20));
  ASSERT_TRUE(fd.ok());
  for (int round = 0; round < 3; ++round) {
    const auto region = MappedRegion::Map(fd->get());
    ASSERT_TRUE(region.ok());
    Prefault prefault;
    prefault.Start(region->data(), region->size());
  }  // joined, then unmapped
}

}  // namespace
}  // namespace harmony::ipc
