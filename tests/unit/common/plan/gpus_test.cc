#include "common/plan/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/machine.h"

namespace harmony::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Gpu H100(int ordinal, Bytes free) {
  return {ordinal, "Some \"GPU\"", "GPU-1", "0000:01:00.0", 132, 90, GiB(80), free, MiB(512), ""};
}

std::vector<DeviceSpec> Named(absl::string_view devices, const std::vector<Gpu>& gpus) {
  const auto named = NameGpus(devices, gpus);
  EXPECT_TRUE(named.ok()) << named.status();
  return named.ok() ? *ParseDevices(*named) : std::vector<DeviceSpec>();
}

std::string Refusal(absl::string_view devices, const std::vector<Gpu>& gpus) {
  return std::string(NameGpus(devices, gpus).status().message());
}

TEST(GpusTest, GoThroughJson) {
  const std::vector<Gpu> gpus = {H100(0, GiB(79)), H100(1, GiB(3))};
  const auto read = GpusFromJson(GpusToJson(gpus));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, gpus);
  EXPECT_FALSE(GpusFromJson("[{\"ordinal\": -1}]").ok());
}

TEST(GpusTest, AreNeededWhereDevicesDoNotSayAll) {
  EXPECT_TRUE(NeedsGpus("cuda"));
  EXPECT_TRUE(NeedsGpus("cuda,mem=1GiB"));
  EXPECT_TRUE(NeedsGpus("cuda:0,mem=1GiB;cuda:1"));
  EXPECT_FALSE(NeedsGpus("cuda:0,mem=1GiB; cuda:0,mem=1GiB"));
  EXPECT_FALSE(NeedsGpus("sim*2:mem=1GiB"));
}

TEST(GpusTest, AllOfThemAreNamedWithWhatTheirProcessesLeave) {
  const auto devices = Named("cuda", {H100(0, GiB(79)), H100(1, GiB(40))});
  ASSERT_EQ(devices.size(), 2u);
  // Contexts of the swapper and of a worker, what the worker's libraries take, and 2% for others.
  const auto left = [](int gib) {
    return static_cast<double>(GiB(gib).count()) * 0.98 - static_cast<double>(MiB(1536).count());
  };
  EXPECT_NEAR(static_cast<double>(devices[0].memory.count()), left(79), 2 << 20);
  EXPECT_EQ(devices[1].cuda_ordinal, 1);
  EXPECT_NEAR(static_cast<double>(devices[1].memory.count()), left(40), 2 << 20);
  EXPECT_EQ(Named("cuda,mem=3GiB", {H100(0, GiB(79))})[0].memory, GiB(3));
}

TEST(GpusTest, DevicesOnOneGpuShareIt) {
  const auto devices = Named("cuda:0;cuda:0;cuda:0,mem=10GiB", {H100(0, GiB(79))});
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0].memory, devices[1].memory);
  EXPECT_EQ(devices[0].memory.count() % (2 << 20), 0);
  EXPECT_LE(devices[0].memory * 2, GiB(69) - MiB(7 * 512));
  EXPECT_EQ(devices[2].memory, GiB(10));
}

// Of a worker on each GPU that it may have to copy to, and none of a swapper that copies nothing.
TEST(GpusTest, ContextsOfWorkersThatCopyAreCounted) {
  std::vector<Gpu> gpus;
  for (int others = 0; others < 3; ++others) {
    gpus.push_back(H100(others, GiB(79)));
    const Bytes by_swapper = Named("cuda", gpus)[0].memory;
    const Bytes by_workers = Named("cuda,copies=worker", gpus)[0].memory;
    EXPECT_EQ((by_swapper - by_workers).count(), (others - 1) * MiB(512).count());
  }
}

TEST(GpusTest, OneThatCannotBeUsedIsLeftOutOrNamed) {
  Gpu full = H100(0, Bytes());
  full.problem = "out of memory";
  EXPECT_EQ(*GpusFromJson(GpusToJson({full})), std::vector<Gpu>{full});
  const auto devices = Named("cuda", {full, H100(1, GiB(79))});
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].cuda_ordinal, 1);
  for (const char* asked : {"cuda", "cuda:0,mem=1GiB"}) {
    EXPECT_THAT(Refusal(asked, {full}), HasSubstr("cuda:0 cannot be used: out of memory"));
  }
}

TEST(GpusTest, WhatIsNotThereIsNamed) {
  EXPECT_THAT(Refusal("cuda:2", {H100(0, GiB(79))}),
              AllOf(HasSubstr("no cuda:2"), HasSubstr("cuda:0 (Some")));
  EXPECT_THAT(Refusal("cuda:0,mem=79GiB", {H100(0, GiB(79))}),
              AllOf(HasSubstr("79.00 GiB"), HasSubstr("free"), HasSubstr("mem=")));
  EXPECT_THAT(Refusal("cuda", {H100(0, GiB(1))}), HasSubstr("1.00 GiB"));
}

}  // namespace
}  // namespace harmony::plan
