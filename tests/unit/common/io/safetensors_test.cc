#include "common/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/safetensors_writer.h"
#include "tests/unit/common/io/safetensors_bytes.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<SafetensorsEntry>> Parse(const std::string& bytes) {
  return ParseSafetensorsHeader(bytes, static_cast<int64_t>(bytes.size()), "f.safetensors");
}

void ExpectBad(absl::string_view header, absl::string_view data, absl::string_view part) {
  const auto parsed = Parse(SafetensorsBytes(header, data));
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << header;
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("f.safetensors")) << header;
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(std::string(part))) << header;
}

TEST(SafetensorsHeaderTest, ReadsEntriesByOffset) {
  const auto parsed = Parse(SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},
          "b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      "12345678"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->size(), 2u);
  EXPECT_EQ((*parsed)[0].name, "b");
  EXPECT_EQ((*parsed)[0].elements(), 1);
  EXPECT_EQ((*parsed)[1].end - (*parsed)[1].begin, 4);
}

TEST(SafetensorsHeaderTest, AGitLfsPointerIsCalledOne) {
  const auto parsed =
      Parse("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n");
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()),
              HasSubstr("f.safetensors: is a git-lfs pointer, not the file itself"));
}

TEST(SafetensorsHeaderTest, EmptyTensorsAreFine) {
  EXPECT_TRUE(
      Parse(SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}})", ""))
          .ok());
  EXPECT_TRUE(Parse(SafetensorsBytes("{}", "")).ok());
}

TEST(SafetensorsHeaderTest, EachFieldIsChecked) {
  ExpectBad("[]", "", "no JSON object");
  ExpectBad("", "", "no JSON object");
  ExpectBad("{", "", "JSON");
  ExpectBad(R"({"a":3})", "", "tensor 'a'");
  ExpectBad(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "1234", "'dtype' is missing");
  ExpectBad(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "1234", "F31");
  ExpectBad(R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", "1234", "'dtype'");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234", "'shape'");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", "1234", "'shape'");
  ExpectBad(R"({"a":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", "1234", "'shape'");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],
      "data_offsets":[0,4]}})",
            "1234", "too many elements");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234", "need 8");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234", "truncated");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234", "no range");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "1234", "no range");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
      "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            "1234", "twice");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
      "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            "1234", "inside");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678", "away from");
  ExpectBad(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "12345678", "end at byte");
  ExpectBad(R"({"__metadata__":{"format":1}})", "", "__metadata__");
}

TEST(SafetensorsHeaderTest, SizesThatCannotBeAreFound) {
  EXPECT_FALSE(Parse("").ok());
  EXPECT_FALSE(Parse("1234567").ok());
  EXPECT_FALSE(Parse(std::string(8, '\xff')).ok());
  EXPECT_FALSE(Parse(std::string("\x09\0\0\0\0\0\0\0{}", 10)).ok());
  const std::string whole =
      SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Parse(whole.substr(0, size)).ok()) << size;
  }
}

class WriterTest : public ::testing::Test {
 protected:
  WriterTest() {
    CounterRandom random(3);
    for (float& value : values_) value = static_cast<float>(random.NextDouble() - 0.5);
  }
  TempDir dir_;
  std::vector<float> values_ = std::vector<float>(300'000);
};

TEST_F(WriterTest, WhatIsWrittenIsReadBack) {
  auto writer =
      SafetensorsWriter::Create(dir_.File("a.safetensors"), {{"half", DType::kBF16, {300, 1000}},
                                                             {"full", DType::kF32, {300'000}},
                                                             {"small", DType::kF16, {3}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->WriteTensor("small", absl::MakeConstSpan(values_).subspan(0, 3)).ok());
  ASSERT_TRUE(writer->WriteTensor("full", values_).ok());
  ASSERT_TRUE(writer->WriteTensor("half", values_).ok());
  EXPECT_FALSE(std::filesystem::exists(dir_.File("a.safetensors")));
  ASSERT_TRUE(writer->Finish().ok());

  const auto reader = CheckpointReader::OpenFile(dir_.File("a.safetensors"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Find("full")->begin % 8, 0);
  std::vector<float> back(values_.size());
  ASSERT_TRUE(reader->ReadF32("full", absl::MakeSpan(back)).ok());
  EXPECT_EQ(back, values_);
  ASSERT_TRUE(reader->ReadF32("half", absl::MakeSpan(back)).ok());
  for (size_t i = 0; i < back.size(); ++i) ASSERT_NEAR(back[i], values_[i], 0.002);
  EXPECT_EQ(dir_.FileCount(), 1u);
}

TEST_F(WriterTest, UnfinishedFilesLeaveNothing) {
  {
    auto writer = SafetensorsWriter::Create(dir_.File("a"), {{"x", DType::kF32, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE(writer->Finish().ok());  // x was never written
    EXPECT_FALSE(writer->WriteTensor("y", absl::MakeConstSpan(values_).subspan(0, 4)).ok());
    EXPECT_FALSE(writer->WriteTensor("x", absl::MakeConstSpan(values_).subspan(0, 5)).ok());
  }
  EXPECT_EQ(dir_.FileCount(), 0u);
}

TEST_F(WriterTest, DamageBeforeTheRenameIsFound) {
  auto writer = SafetensorsWriter::Create(dir_.File("a"), {{"x", DType::kF32, {1000}}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->WriteTensor("x", absl::MakeConstSpan(values_).subspan(0, 1000)).ok());
  std::string temporary;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    temporary = entry.path().string();
  }
  std::fstream file(temporary, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-10, std::ios::end);
  file.put('!');
  file.close();
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("a")));
}

}  // namespace
}  // namespace harmony::io
