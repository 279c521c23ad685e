#include "common/cuda/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/cuda/context.h"
#include "common/cuda/devices.h"
#include "common/plan/machine.h"
#include "tests/fake_cuda/hooks.h"

namespace harmony::cuda {
namespace {

using ::testing::HasSubstr;

const Driver& DriverWith(const char* config) {
  fake_cuda::FindHooks()->configure(config);
  const Driver& driver = **LoadDriver();
  EXPECT_EQ(driver.Init(0), CUDA_SUCCESS);
  return driver;
}

TEST(RegionTest, IsMadeWithoutAContextAndHoldsItsBytesForWhoeverMapsIt) {
  const Driver& driver = DriverWith("");
  ipc::UniqueFd fd = *CreateRegion(driver, 0, plan::kGpuPage);
  const Context context = *Context::Create(driver, 0);
  CopyQueue queue = *CopyQueue::Create(driver);
  std::vector<char> bytes(4096, 'x'), back(4096);
  ASSERT_EQ(driver.MemHostRegister(bytes.data(), bytes.size(), 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.MemHostRegister(back.data(), back.size(), 0), CUDA_SUCCESS);
  {
    const RegionMapping one = *RegionMapping::Map(driver, fd.get(), plan::kGpuPage, {0});
    driver.MemcpyHtoDAsync(one.address(), bytes.data(), bytes.size(), queue.stream());
    ASSERT_TRUE(queue.Finish().ok());
  }
  {
    const RegionMapping other = *RegionMapping::Map(driver, fd.get(), plan::kGpuPage, {0});
    fd.Reset();
    driver.MemcpyDtoHAsync(back.data(), other.address(), back.size(), queue.stream());
    ASSERT_TRUE(queue.Finish().ok());
  }
  EXPECT_EQ(back, bytes);
  driver.MemHostUnregister(bytes.data());
  driver.MemHostUnregister(back.data());
}

TEST(RegionTest, WhatCannotBeMadeIsSaid) {
  const Driver& driver = DriverWith("devices=2,memory=64MiB");
  const auto refusal = [&](int ordinal, Bytes size) {
    return CreateRegion(driver, ordinal, size).status();
  };
  EXPECT_THAT(std::string(refusal(2, plan::kGpuPage).message()), HasSubstr("cuda:1"));
  EXPECT_EQ(refusal(0, MiB(3)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(0, MiB(66)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(RegionMapping::Map(driver, /*fd=*/-1, plan::kGpuPage, {0}).ok());
}

TEST(CopyQueueTest, ADeviceThatIsLostIsUnavailable) {
  const Driver& driver = DriverWith("fail=EventRecord:2:719");
  const Context context = *Context::Create(driver, 0);
  CopyQueue queue = *CopyQueue::Create(driver);
  EXPECT_TRUE(queue.Finish().ok());
  EXPECT_EQ(queue.Finish().code(), absl::StatusCode::kUnavailable);
}

TEST(DevicesTest, EachIsListedWithWhatAContextTakesOfIt) {
  const Driver& driver = DriverWith("devices=2,memory=64MiB,context=3MiB");
  const auto gpus = ListGpus(driver);
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[1].ordinal, 1);
  EXPECT_EQ((*gpus)[1].capability, 90);
  EXPECT_EQ((*gpus)[1].memory, MiB(64));
  EXPECT_EQ((*gpus)[1].free, MiB(64));
  EXPECT_EQ((*gpus)[1].context, MiB(3));
  EXPECT_NE((*gpus)[0].uuid, (*gpus)[1].uuid);
}

TEST(DevicesTest, OneThatLacksTheTypesThatKernelsTakeCannotBeUsed) {
  const auto gpus = ListGpus(DriverWith("capability=75"));
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_THAT(gpus->front().problem, testing::HasSubstr("compute capability is 7.5"));
}

}  // namespace
}  // namespace harmony::cuda
