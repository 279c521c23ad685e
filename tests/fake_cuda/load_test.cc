// What LoadDriver makes of drivers of all kinds, each in a fresh process: it loads one only once.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"

namespace harmony::fake_cuda {
namespace {

void ExitWithLoadStatus(const char* config) {
  setenv("FAKE_CUDA", config, 1);
  const absl::StatusOr<const cuda::Driver*> driver = cuda::LoadDriver();
  fprintf(stderr, "%s\n", driver.status().ToString().c_str());
  _exit(driver.ok() ? 0 : 1);
}

TEST(LoadDriverDeathTest, SaysWhatIsMissing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto failed = ::testing::ExitedWithCode(1);
  EXPECT_EXIT(ExitWithLoadStatus("devices=2"), ::testing::ExitedWithCode(0), "OK");
  EXPECT_EXIT(ExitWithLoadStatus("devices=0"), failed, "FAILED_PRECONDITION.*finds no GPU");
  EXPECT_EXIT(ExitWithLoadStatus("driver=12040"), failed, "is for CUDA 12.4");
  EXPECT_EXIT(ExitWithLoadStatus("lacks=MemCreate"), failed, "lacks cuMemCreate");
  EXPECT_EXIT(ExitWithLoadStatus("fail=cuInit:1:802"), failed, "system not yet initialized");
}

TEST(LoadDriverDeathTest, WrongConfigurationsAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(ExitWithLoadStatus("colour=red"), "FAKE_CUDA: colour=red: there is no such key");
  EXPECT_DEATH(ExitWithLoadStatus("devices=17"), "FAKE_CUDA: devices=17: from 0 to 16");
  EXPECT_DEATH(ExitWithLoadStatus("memory=much"), "FAKE_CUDA: memory=much");
  EXPECT_DEATH(ExitWithLoadStatus("fail=MemCrate:1:2"), "there is no function 'MemCrate'");
}

}  // namespace
}  // namespace harmony::fake_cuda
