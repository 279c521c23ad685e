#include "coordinator/runner/job_runner.h"
#include "gtest/gtest.h"

namespace harmony::runner {
namespace {

TEST(OwnerOfTest, CopiesAreTheSwappersOrTheirDevicesWorkers) {
  using command::LaneKind;
  const ProcessId swapper{Role::kSwapper, 0}, host{Role::kHostWorker, 0}, worker{Role::kWorker, 1};
  for (const LaneKind copies : {LaneKind::kH2DBulk, LaneKind::kD2H, LaneKind::kP2P}) {
    EXPECT_EQ(OwnerOf({copies, 1}, {}), swapper);
    EXPECT_EQ(OwnerOf({copies, 1}, {1}), worker);
    EXPECT_EQ(OwnerOf({copies, 0}, {1}), swapper);
  }
  EXPECT_EQ(OwnerOf({LaneKind::kCompute, 1}, {0}), worker);
  EXPECT_EQ(OwnerOf({LaneKind::kHostIo, 0}, {0}), host);
}

}  // namespace
}  // namespace harmony::runner
