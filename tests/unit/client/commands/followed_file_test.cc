#include "client/commands/followed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/common/io/temp_dir.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FollowedFileTest : public ::testing::Test {
 protected:
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  io::TempDir dir_;
  const std::string path_ = dir_.File("worker-0.log");
};

TEST_F(FollowedFileTest, ShowsTheLastLinesAndThenWholeLinesAsTheyCome) {
  Append("1\n2\n3\nbeg");
  FollowedFile file(path_, 2), all(path_, -1), none(path_, 0);
  EXPECT_THAT(file.TakeLines(), ElementsAre("2", "3"));
  EXPECT_THAT(all.TakeLines(), ElementsAre("1", "2", "3"));
  EXPECT_THAT(none.TakeLines(), IsEmpty());
  EXPECT_THAT(file.TakeLines(), IsEmpty());
  Append("inning\n\nmore\n");
  EXPECT_THAT(file.TakeLines(), ElementsAre("beginning", "", "more"));
  EXPECT_THAT(none.TakeLines(), ElementsAre("beginning", "", "more"));
}

TEST_F(FollowedFileTest, OfALongLogTheLastLinesAreTheLast) {
  for (int i = 0; i < 5000; ++i) Append(std::to_string(i) + "\n");
  FollowedFile file(path_, 3);
  EXPECT_THAT(file.TakeLines(), ElementsAre("4997", "4998", "4999"));
}

TEST_F(FollowedFileTest, GoesOnWithTheFileThatTakesTheName) {
  FollowedFile file(path_, 10);
  EXPECT_THAT(file.TakeLines(), IsEmpty());
  Append("first\n");
  EXPECT_THAT(file.TakeLines(), ElementsAre("first"));
  // Rotated: who had it open writes on until it is told; then the new file has all that comes.
  std::ofstream writer(path_, std::ios::app);
  fs::rename(path_, path_ + ".1");
  writer << "second\n" << std::flush;
  EXPECT_THAT(file.TakeLines(), ElementsAre("second"));
  writer << "third\nrest" << std::flush;
  Append("fourth\n");
  EXPECT_THAT(file.TakeLines(), ElementsAre("third", "rest", "fourth"));
  fs::remove(path_);
  EXPECT_THAT(file.TakeLines(), IsEmpty());
  Append("fifth\n");
  EXPECT_THAT(file.TakeLines(), ElementsAre("fifth"));
}

TEST_F(FollowedFileTest, BeginsAnewWhereTheFileWasCut) {
  Append("a long first line\n");
  FollowedFile file(path_, 10);
  EXPECT_THAT(file.TakeLines(), ElementsAre("a long first line"));
  std::ofstream(path_, std::ios::trunc) << "short\n";
  EXPECT_THAT(file.TakeLines(), ElementsAre("short"));
}

}  // namespace
}  // namespace harmony::client
