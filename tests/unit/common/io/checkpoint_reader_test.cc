#include "common/io/checkpoint_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/io/safetensors_bytes.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

using ::testing::HasSubstr;

// One F32 tensor of one element, 1.0, and a BF16 one with {1, 2}.
const std::string kA = SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                        absl::string_view("\0\0\x80\x3f", 4));
const std::string kB =
    SafetensorsBytes(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})",
                     absl::string_view("\x80\x3f\0\x40", 4));
constexpr absl::string_view kIndex = "model.safetensors.index.json";

void ExpectError(const TempDir& dir, absl::StatusCode code, absl::string_view part) {
  const auto reader = CheckpointReader::OpenDirectory(dir.path());
  EXPECT_EQ(reader.status().code(), code) << reader.status();
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr(std::string(part)));
}

TEST(CheckpointReaderTest, SingleFile) {
  const TempDir dir;
  dir.Write("model.safetensors", kB);
  const auto reader = CheckpointReader::OpenDirectory(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(2);
  ASSERT_TRUE(reader->ReadF32("b", absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  EXPECT_EQ(reader->ReadF32("c", absl::MakeSpan(values)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reader->ReadF32("b", absl::MakeSpan(values).subspan(1)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CheckpointReaderTest, ShardsByIndex) {
  const TempDir dir;
  dir.Write("m-1.safetensors", kA);
  dir.Write("m-2.safetensors", kB);
  dir.Write(kIndex,
            R"({"metadata":{},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const auto reader = CheckpointReader::OpenDirectory(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->tensors().size(), 2u);
  float value = 0;
  ASSERT_TRUE(reader->ReadF32("a", absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 1.0f);
}

TEST(CheckpointReaderTest, ComparesTensors) {
  const TempDir dir;
  dir.Write("model.safetensors",
            SafetensorsBytes(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},
                                 "b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},
                                 "c":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},
                                 "d":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]}})",
                             "abcdabcdabcXabcd"));
  const auto reader = CheckpointReader::OpenDirectory(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(*reader->SameBytes("a", "b"));
  EXPECT_FALSE(*reader->SameBytes("a", "c"));
  EXPECT_FALSE(*reader->SameBytes("a", "d"));
}

TEST(CheckpointReaderTest, IndexThatDoesNotAgreeIsNamed) {
  const TempDir dir;
  dir.Write("m-1.safetensors", kA);
  dir.Write("m-2.safetensors", kB);
  dir.Write(kIndex, R"({"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors"}})");
  ExpectError(dir, absl::StatusCode::kInvalidArgument, "'a' is not in m-2.safetensors");
  dir.Write(kIndex, R"({"weight_map":{"a":"../m-1.safetensors"}})");
  ExpectError(dir, absl::StatusCode::kInvalidArgument, "'a'");
  dir.Write(kIndex, R"({"weight_map":{"a":"m-3.safetensors"}})");
  ExpectError(dir, absl::StatusCode::kNotFound, "m-3.safetensors");
  dir.Write(kIndex, R"({"weight_map":[]})");
  ExpectError(dir, absl::StatusCode::kInvalidArgument, "weight_map");
  dir.Write("m-2.safetensors", kA);
  dir.Write(kIndex, R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  ExpectError(dir, absl::StatusCode::kInvalidArgument, "is also in");
}

TEST(CheckpointReaderTest, MissingTruncatedAndForeignFilesAreNamed) {
  const TempDir dir;
  ExpectError(dir, absl::StatusCode::kNotFound, "has neither");
  dir.Write("model.safetensors", kA.substr(0, kA.size() - 1));
  ExpectError(dir, absl::StatusCode::kInvalidArgument, "truncated");
  dir.Write("model.safetensors", "PK");
  ExpectError(dir, absl::StatusCode::kInvalidArgument, "only 2 bytes");
  dir.Write("model.safetensors",
            SafetensorsBytes(R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  const auto reader = CheckpointReader::OpenDirectory(dir.path());
  ASSERT_TRUE(reader.ok());
  float value = 0;
  EXPECT_THAT(std::string(reader->ReadF32("a", absl::MakeSpan(&value, 1)).message()),
              HasSubstr("I32"));
}

}  // namespace
}  // namespace harmony::io
