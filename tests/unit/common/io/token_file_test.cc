#include "common/io/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/io/temp_dir.h"

namespace harmony {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenFileTest, ReadsEachFormat) {
  const TempDir dir;
  std::vector<int32_t> out(4);
  const auto text = TokenFile::Open(dir.Write("t", "abcdefgh"), DataFormat::kTextBytes);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->SequenceCount(3), 2);  // the last byte is only a label
  ASSERT_TRUE(text->ReadSequence(1, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre('d', 'e', 'f', 'g'));

  const auto u16 = TokenFile::Open(dir.Write("u16", absl::string_view("\1\0\0\1\xff\xff\2\0", 8)),
                                   DataFormat::kTokensU16);
  ASSERT_TRUE(u16.ok());
  ASSERT_TRUE(u16->ReadSequence(0, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(1, 256, 65535, 2));

  const auto u32 = TokenFile::Open(dir.Write("u32", absl::string_view("\1\0\0\0\0\0\1\0", 8)),
                                   DataFormat::kTokensU32);
  ASSERT_TRUE(u32.ok());
  out.resize(2);
  ASSERT_TRUE(u32->ReadSequence(0, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(1, 65536));
}

TEST(TokenFileTest, LongSequencesAreReadInPieces) {
  const TempDir dir;
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(i * 7 % 251);
  const auto file = TokenFile::Open(dir.Write("t", bytes), DataFormat::kTextBytes);
  std::vector<int32_t> out(50'001);
  EXPECT_EQ(file->SequenceCount(49'999), 2);
  ASSERT_TRUE(file->ReadSequence(0, absl::MakeSpan(out)).ok());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], static_cast<int32_t>(static_cast<unsigned char>(bytes[i])));
  }
}

TEST(TokenFileTest, OddSizesAndMissingFilesAreErrors) {
  const TempDir dir;
  for (const auto& [size, format] : std::initializer_list<std::pair<size_t, DataFormat>>{
           {0, DataFormat::kTextBytes}, {3, DataFormat::kTokensU16}, {6, DataFormat::kTokensU32}}) {
    const auto file = TokenFile::Open(dir.Write("t", std::string(size, 'x')), format);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("data.format"));
  }
  const auto missing = TokenFile::Open(dir.File("none"), DataFormat::kTextBytes);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("data.path"));
}

TEST(TokenFileTest, LessThanOneBatchIsAnError) {
  const TempDir dir;
  const auto file = TokenFile::Open(dir.Write("t", std::string(33, 'x')), DataFormat::kTextBytes);
  EXPECT_TRUE(file->Validate(256, 8, 4).ok());
  const absl::Status status = file->Validate(256, 8, 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at least 41 tokens"));
}

TEST(TokenFileTest, TokensBeyondTheVocabularyAreNamedByPosition) {
  const TempDir dir;
  std::string bytes(3'000'000, '\1');
  bytes[2'000'001] = '\x80';
  const auto text = TokenFile::Open(dir.Write("t", bytes), DataFormat::kTextBytes);
  EXPECT_TRUE(text->Validate(256, 8, 1).ok());
  EXPECT_TRUE(text->Validate(129, 8, 1).ok());
  EXPECT_THAT(std::string(text->Validate(128, 8, 1).message()),
              HasSubstr("token 128 at position 2000001"));
  const auto u16 = TokenFile::Open(dir.File("t"), DataFormat::kTokensU16);
  EXPECT_THAT(std::string(u16->Validate(1000, 8, 1).message()),
              HasSubstr("token 32769 at position 1000000"));
  const auto u32 = TokenFile::Open(dir.File("t"), DataFormat::kTokensU32);
  EXPECT_THAT(std::string(u32->Validate(0x7fffffff, 8, 1).message()), HasSubstr(""));
  EXPECT_THAT(std::string(u32->Validate(50257, 8, 1).message()), HasSubstr("at position 0 "));
}

TEST(TokenFileTest, AFileThatShrinksIsAnErrorNotASignal) {
  const TempDir dir;
  const auto file = TokenFile::Open(dir.Write("t", std::string(1000, 'x')), DataFormat::kTextBytes);
  std::filesystem::resize_file(dir.File("t"), 10);
  std::vector<int32_t> out(101);
  EXPECT_EQ(file->ReadSequence(5, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace harmony
