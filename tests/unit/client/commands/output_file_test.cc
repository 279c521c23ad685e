#include "client/commands/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/common/io/temp_dir.h"

namespace harmony::client {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class OutputFileTest : public ::testing::Test {
 protected:
  std::string Wrong(const std::string& path, const std::vector<std::string>& inputs = {}) {
    const absl::Status status = CheckOutputFile("--trace", path, inputs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--trace " + path));
    return std::string(status.message());
  }
  io::TempDir dir_;
  const std::string job_ = dir_.Write("job.yaml", "max_steps: 5\n");
};

TEST_F(OutputFileTest, ANewFileIsNotMadeYetNorItsFolders) {
  EXPECT_TRUE(CheckOutputFile("-o", dir_.File("new/folder/t.json"), {job_, ""}).ok());
  EXPECT_TRUE(CheckOutputFile("-o", dir_.File("t.json"), {job_}).ok());
  EXPECT_FALSE(fs::exists(dir_.File("new")));
  EXPECT_FALSE(fs::exists(dir_.File("t.json")));
}

TEST_F(OutputFileTest, WhatIsThereStaysAsItIs) {
  EXPECT_TRUE(CheckOutputFile("-o", job_, {}).ok());
  EXPECT_EQ(dir_.Read("job.yaml"), "max_steps: 5\n");
  EXPECT_TRUE(CheckOutputFile("-o", "/dev/null", {}).ok());
}

TEST_F(OutputFileTest, WhatCannotBeWrittenIsTold) {
  EXPECT_THAT(Wrong(dir_.File("")), HasSubstr("is a directory"));
  EXPECT_THAT(Wrong(dir_.File("no/")), HasSubstr("is a directory"));
  EXPECT_THAT(Wrong(job_ + "/t.json"), HasSubstr("Not a directory"));
  EXPECT_THAT(Wrong(job_ + "/folder/t.json"), HasSubstr("Not a directory"));
  EXPECT_THAT(Wrong("/proc/harmony/t.json"), HasSubstr("cannot be written"));
}

TEST_F(OutputFileTest, AnInputIsNotOverwritten) {
  fs::create_symlink(job_, dir_.File("link"));
  for (const std::string& path : {job_, dir_.File("./job.yaml"), dir_.File("link")}) {
    EXPECT_THAT(Wrong(path, {"", job_}), HasSubstr("this command reads"));
  }
}

}  // namespace
}  // namespace harmony::client
