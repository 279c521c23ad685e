#include "common/ipc/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace harmony::ipc {
namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys.
class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("host_memory_") +
             testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    Write("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  Bytes Available() { return AvailableHostMemory(root_.string()); }
  fs::path root_;
};

TEST_F(HostMemoryTest, WhomTheKernelKilledIsCounted) {
  EXPECT_EQ(OomKills(root_.string()), std::nullopt);
  Write("proc/vmstat", "nr_free_pages 7\n");
  EXPECT_EQ(OomKills(root_.string()), std::nullopt);
  Write("proc/vmstat", "nr_free_pages 7\noom_kill 12\nnuma_hit 3\n");
  EXPECT_EQ(OomKills(root_.string()), 12);
}

TEST_F(HostMemoryTest, SystemOnly) { EXPECT_EQ(Available(), KiB(4000)); }

TEST_F(HostMemoryTest, Version2LimitOfAParentCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("sys/fs/cgroup/a/b/memory.current", "1\n");
  Write("sys/fs/cgroup/a/memory.max", "2048000\n");
  Write("sys/fs/cgroup/a/memory.current", "1024000\n");
  Write("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1000\n");
  EXPECT_EQ(Available(), Bytes(1025000));
}

TEST_F(HostMemoryTest, Version1) {
  Write("proc/self/cgroup", "12:cpu,cpuacct:/x\n3:memory:/y\n");
  Write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "500000\n");
  Write("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "600000\n");
  EXPECT_EQ(Available(), Bytes(0)) << "more used than allowed";
}

TEST_F(HostMemoryTest, UnlimitedVersion1) {
  Write("proc/self/cgroup", "3:memory:/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n");
  EXPECT_EQ(Available(), KiB(4000));
}

TEST(HostMemoryRealTest, ThisMachineHasSome) {
  EXPECT_GT(AvailableHostMemory(), MiB(1));
  EXPECT_LT(AvailableHostMemory(), GiB(1) * (1 << 20)) << "no limit was found at all";
}

}  // namespace
}  // namespace harmony::ipc
