#include "common/io/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace harmony::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointManifestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ckptXXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Make(int64_t step) {
    const std::string path = absl::StrCat(folder_, "/", CheckpointName(step));
    std::filesystem::create_directory(path);
    std::ofstream(path + "/weights.bin") << "some weights";
    std::ofstream(path + "/empty.bin");
    CheckpointManifest manifest;
    manifest.step = step;
    manifest.resolved.micro_batch_size = 2;
    manifest.result_keys = "seed: 1\n";
    manifest.details_json = R"({"isa": "avx2"})";
    EXPECT_TRUE(WriteManifest(path, manifest).ok());
    return path;
  }

  std::string folder_;
};

TEST_F(CheckpointManifestTest, RoundTrips) {
  const auto manifest = VerifyCheckpoint(Make(7));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, 7);
  EXPECT_EQ(manifest->resolved.micro_batch_size, 2);
  EXPECT_EQ(manifest->result_keys, "seed: 1\n");
  EXPECT_EQ(manifest->details_json, R"({"isa":"avx2"})");
  ASSERT_EQ(manifest->files.size(), 2u);
  EXPECT_EQ(manifest->files[1].size, 12);
}

TEST_F(CheckpointManifestTest, NamesWhatIsDamaged) {
  const std::string path = Make(3);
  std::ofstream(path + "/weights.bin") << "same weights";
  EXPECT_THAT(std::string(VerifyCheckpoint(path).status().message()),
              HasSubstr("weights.bin: its checksum is wrong"));
  std::ofstream(path + "/weights.bin") << "cut";
  EXPECT_THAT(std::string(VerifyCheckpoint(path).status().message()),
              HasSubstr("weights.bin: has 3 bytes, not 12"));
  std::filesystem::remove(path + "/weights.bin");
  EXPECT_EQ(VerifyCheckpoint(path).status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(path + "/manifest.json") << "{\"step\": ";
  EXPECT_THAT(std::string(VerifyCheckpoint(path).status().message()), HasSubstr("manifest.json"));
}

TEST_F(CheckpointManifestTest, ReplicasThatNoTreeAddsUpAreNamed) {
  const std::string path = Make(3);
  CheckpointManifest manifest;
  manifest.details_json = "{}";
  manifest.resolved.virtual_replicas = 6;
  ASSERT_TRUE(WriteManifest(path, manifest).ok());
  const absl::Status read = ReadManifest(path).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()),
              HasSubstr("manifest.json: virtual_replicas: is 6; it must be a power of two"));
  // Of a version that added them up in turn: such a checkpoint can still be exported.
  manifest.resolved.sum_order = job::SumOrder::kInTurn;
  ASSERT_TRUE(WriteManifest(path, manifest).ok());
  EXPECT_TRUE(ReadManifest(path).ok());
}

TEST_F(CheckpointManifestTest, ListsAndPrunes) {
  for (int64_t step : {9, 10, 2}) Make(step);
  std::filesystem::create_directory(folder_ + "/checkpoint-x");
  EXPECT_THAT(ListCheckpoints(folder_), ElementsAre(10, 9, 2));
  EXPECT_TRUE(PruneCheckpoints(folder_, 0).ok());
  EXPECT_TRUE(PruneCheckpoints(folder_, 2).ok());
  EXPECT_THAT(ListCheckpoints(folder_), ElementsAre(10, 9));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/checkpoint-x"));
  Make(11);
  EXPECT_TRUE(PruneCheckpoints(folder_, 1, -1, folder_ + "/checkpoint-9/").ok());
  EXPECT_THAT(ListCheckpoints(folder_), ElementsAre(11, 9));
}

TEST_F(CheckpointManifestTest, ANamedOneThatIsNotThereIsSaidToBeGone) {
  for (int64_t step : {9, 10}) Make(step);
  const absl::Status gone = VerifyNamedCheckpoint(folder_ + "/checkpoint-2").status();
  EXPECT_THAT(std::string(gone.message()),
              HasSubstr("there is no such folder; the newest checkpoint there is checkpoint-10"));
  EXPECT_THAT(std::string(VerifyNamedCheckpoint("/nowhere/checkpoint-2").status().message()),
              testing::EndsWith("there is no such folder"));
}

}  // namespace
}  // namespace harmony::io
