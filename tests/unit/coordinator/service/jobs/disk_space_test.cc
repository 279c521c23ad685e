#include "coordinator/service/jobs/disk_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/families/causal_lm.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::service {
namespace {

using ::testing::HasSubstr;

class DiskSpaceTest : public ::testing::Test {
 protected:
  DiskSpaceTest()
      : model_(model::BuildModelSpec(
            *model::ParseModelConfig(*model::PresetConfigJson("gpt2-124m"), "x"), 8)) {
    job_.max_steps = 100;
  }
  DiskNeed Need(const std::vector<int64_t>& there = {}) {
    return DiskNeedOf(job_, model_, io::WeightMap::ForNewModel(model_), there);
  }
  model::ModelSpec model_;
  job::JobSpec job_;
};

TEST_F(DiskSpaceTest, CountsWhatAFinalModelAndACheckpointHold) {
  const int64_t parameters = model_.parameter_count();
  EXPECT_EQ(Need().final_model, Bytes(4 * parameters) + KiB(64));
  EXPECT_EQ(Need().checkpoint, Bytes(12 * parameters) + KiB(64));
  job_.optim = job::OptimizerKind::kSgd;
  EXPECT_EQ(Need().checkpoint, Bytes(4 * parameters) + KiB(64));
}

TEST_F(DiskSpaceTest, CountsTheCheckpointsThatAreToCome) {
  EXPECT_EQ(Need().checkpoints, 1);  // the last one
  job_.save_steps = 10;
  job_.save_total_limit = 2;
  EXPECT_EQ(Need().checkpoints, 3);          // one is written before the oldest goes
  EXPECT_EQ(Need({20, 10}).checkpoints, 1);  // ... of which two are there
  EXPECT_EQ(Need({20}).checkpoints, 2);
  EXPECT_EQ(Need({90, 80, 70}).checkpoints, 1);
  EXPECT_EQ(Need({100, 90}).checkpoints, 0);  // all that is left is final/
  job_.save_total_limit = 50;
  EXPECT_EQ(Need().checkpoints, 10);
  EXPECT_EQ(Need({50}).checkpoints, 5);
}

TEST_F(DiskSpaceTest, SaysHowMuchIsMissingWhereverTheFolderWillBe) {
  io::TempDir dir;
  DiskNeed need;
  EXPECT_TRUE(CheckDiskSpace(dir.File("not/there/yet"), need).ok());
  need.checkpoint = Bytes(int64_t{1} << 60);
  need.checkpoints = 2;
  const absl::Status status = CheckDiskSpace(dir.File("not/there/yet"), need);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 checkpoints of "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(" are missing"));
}

}  // namespace
}  // namespace harmony::service
