#include "common/cuda/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/fake_cuda/hooks.h"

namespace harmony::cuda {
namespace {

using ::testing::HasSubstr;

class MonitorTest : public ::testing::Test {
 protected:
  ~MonitorTest() override { unsetenv("FAKE_NVML"); }
};

TEST_F(MonitorTest, ReadsTheGpuThatTheDriverGivesThisNumber) {
  fake_cuda::FindHooks()->configure("devices=2");
  const Driver& driver = **LoadDriver();
  ASSERT_EQ(driver.Init(0), CUDA_SUCCESS);
  for (const int ordinal : {0, 1}) {
    const auto monitor = Monitor::Open(driver, ordinal);
    ASSERT_TRUE(monitor.ok()) << monitor.status();
    const Readings readings = (*monitor)->Read();
    EXPECT_EQ(readings.temperature_celsius, 41 + ordinal);
    EXPECT_EQ(readings.sm_clock_mhz, 1980);
    EXPECT_EQ(readings.memory_clock_mhz, 2619);
    EXPECT_EQ(readings.memory_used, GiB(3));
    EXPECT_EQ(readings.memory, GiB(8));
    EXPECT_EQ(readings.pcie_in, BytesPerSecond{25.1e9});
    EXPECT_EQ(readings.pcie_out, BytesPerSecond{3e6});
  }
  EXPECT_THAT(std::string(Monitor::Open(driver, 2).status().message()), HasSubstr("a GPU"));
}

TEST_F(MonitorTest, LeavesOutWhatTheGpuDoesNotTell) {
  fake_cuda::FindHooks()->configure("");
  const Driver& driver = **LoadDriver();
  ASSERT_EQ(driver.Init(0), CUDA_SUCCESS);
  setenv("FAKE_NVML", "nvmlDeviceGetPcieThroughput,nvmlDeviceGetTemperature", /*overwrite=*/1);
  const auto monitor = Monitor::Open(driver, 0);
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  Readings readings = (*monitor)->Read();
  EXPECT_EQ(readings.temperature_celsius, std::nullopt);
  EXPECT_EQ(readings.pcie_in, std::nullopt);
  EXPECT_EQ(readings.pcie_out, std::nullopt);
  EXPECT_EQ(readings.sm_clock_mhz, 1980);
  setenv("FAKE_NVML", "nvmlDeviceGetClockInfo,nvmlDeviceGetMemoryInfo", /*overwrite=*/1);
  readings = (*monitor)->Read();
  EXPECT_EQ(readings.sm_clock_mhz, std::nullopt);
  EXPECT_EQ(readings.memory_clock_mhz, std::nullopt);
  EXPECT_EQ(readings.memory, std::nullopt);
  EXPECT_EQ(readings.temperature_celsius, 41);
}

}  // namespace
}  // namespace harmony::cuda
