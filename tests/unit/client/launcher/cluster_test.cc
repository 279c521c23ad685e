#include "client/launcher/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "client/launcher/host_memory.h"

namespace harmony::client {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<plan::Gpu>> NoGpus() {
  return absl::FailedPreconditionError("no driver");
}

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "harmony-cluster.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string Config(const std::string& text) {
    std::string path = dir_ / "cluster.yaml";
    std::ofstream(path) << text;
    return path;
  }
  std::string Refusal(const std::string& config) {
    return std::string(ResolveCluster(Config(config), "", "", GiB(16), NoGpus).status().message());
  }

  std::filesystem::path dir_;
};

TEST_F(ClusterTest, DefaultsComeFromTheMemoryThereIs) {
  absl::StatusOr<Cluster> cluster = ResolveCluster("", "", "", GiB(16), NoGpus);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(cluster->default_devices);
  EXPECT_EQ(cluster->devices, "sim:mem=4GiB");
  ASSERT_EQ(cluster->specs.size(), 1u);
  EXPECT_EQ(cluster->specs[0].memory, GiB(4));
  EXPECT_EQ(cluster->host_memory, MiB(9830));  // 80% of the other 12 GiB
}

TEST_F(ClusterTest, DefaultDevicesStayWithinBounds) {
  EXPECT_EQ(DefaultDevices(Bytes(0)), "sim:mem=256MiB");
  EXPECT_EQ(DefaultDevices(GiB(3)), "sim:mem=768MiB");
  EXPECT_EQ(DefaultDevices(GiB(1000)), "sim:mem=8GiB");
}

TEST_F(ClusterTest, GpusThatCanBeUsedAreTheDefault) {
  plan::Gpu gpu;
  gpu.memory = gpu.free = GiB(80);
  const auto gpus = [&gpu] { return std::vector<plan::Gpu>{gpu}; };
  absl::StatusOr<Cluster> cluster = ResolveCluster("", "", "", GiB(16), gpus);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(cluster->default_devices);
  ASSERT_EQ(cluster->specs.size(), 1u);
  EXPECT_EQ(cluster->specs[0].kind, plan::DeviceKind::kCuda);
  // One that is full is no reason to train on the CPU without a word.
  gpu.free = MiB(100);
  EXPECT_THAT(std::string(ResolveCluster("", "", "", GiB(16), gpus).status().message()),
              HasSubstr("or sim:mem=4GiB to train on the CPU"));
  gpu.problem = "it is too old";
  cluster = ResolveCluster("", "", "", GiB(16), gpus);
  EXPECT_EQ(cluster->devices, "sim:mem=4GiB");
  EXPECT_EQ(cluster->why_no_gpus, "cuda:0: it is too old");
}

TEST_F(ClusterTest, GpusAreLookedForWhereTheirMemoryIsNotGiven) {
  const auto one = [] {
    plan::Gpu gpu;
    gpu.memory = gpu.free = GiB(80);
    return std::vector<plan::Gpu>{gpu};
  };
  EXPECT_EQ(ResolveCluster("", "cuda", "", GiB(16), one)->specs.size(), 1u);
  EXPECT_EQ(ResolveCluster("", "cuda", "", GiB(16), NoGpus).status().message(), "no driver");
  // A plan for another machine.
  const absl::StatusOr<Cluster> other = ResolveCluster("", "cuda:3,mem=1GiB", "", GiB(16), NoGpus);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->host_memory, MiB(13107)) << "its memory is not the host's";
}

TEST_F(ClusterTest, TheFileIsReadAndTheCommandLineWins) {
  std::string path = Config("devices: ['sim*2:mem=8MiB', 'sim:mem=4MiB']\nhost_memory: 1GiB\n");
  absl::StatusOr<Cluster> cluster = ResolveCluster(path, "", "", GiB(16), NoGpus);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->specs.size(), 3u);
  EXPECT_EQ(cluster->host_memory, GiB(1));
  EXPECT_FALSE(cluster->default_devices);

  cluster = ResolveCluster(path, "sim:mem=2MiB", "64MiB", GiB(16), NoGpus);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->specs.size(), 1u);
  EXPECT_EQ(cluster->host_memory, MiB(64));
}

TEST_F(ClusterTest, MistakesAreNamed) {
  EXPECT_THAT(Refusal("device: sim:mem=1MiB\n"), HasSubstr("unknown key 'device'"));
  EXPECT_THAT(Refusal("devices: {a: b}\n"), HasSubstr("devices"));
  EXPECT_THAT(Refusal("devices: ['sim:mem=1MiB', [x]]\n"), HasSubstr("devices"));
  EXPECT_THAT(Refusal("- a\n"), HasSubstr("keys and values"));
  EXPECT_THAT(Refusal("devices: 'sim:mem=1MiB'\nhost_memory: 10 apples\n"),
              HasSubstr("host_memory"));
  EXPECT_THAT(Refusal("devices: [unclosed\n"), HasSubstr("cluster.yaml"));
  EXPECT_THAT(Refusal("devices: 'sim:mem=1MiB'\ndevices: 'sim:mem=2MiB'\n"),
              HasSubstr("the key 'devices' is given twice"));
  EXPECT_THAT(Refusal("host_memory: 1e18\n"), HasSubstr("host_memory: 1e18 is too much"));
  for (const std::string& path : {dir_.string(), std::string("/dev/zero")}) {
    EXPECT_THAT(std::string(ResolveCluster(path, "", "", GiB(16), NoGpus).status().message()),
                HasSubstr(path + ": is not a regular file"));
  }
  EXPECT_TRUE(absl::IsNotFound(ResolveCluster("/nowhere.yaml", "", "", GiB(1), NoGpus).status()));
}

}  // namespace
}  // namespace harmony::client
