#include "common/io/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/io/run_file.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenFileTest, ReadsEachFormat) {
  const TempDir dir;
  std::vector<int32_t> out(4);
  const auto text = TokenFile::Open(dir.Write("t", "abcdefgh"), job::DataFormat::kTextBytes);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->SequenceCount(3), 2);  // the last byte is only a label
  ASSERT_TRUE(text->ReadSequence(1, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre('d', 'e', 'f', 'g'));

  const auto u16 = TokenFile::Open(dir.Write("u16", absl::string_view("\1\0\0\1\xff\xff\2\0", 8)),
                                   job::DataFormat::kTokensU16);
  ASSERT_TRUE(u16.ok());
  ASSERT_TRUE(u16->ReadSequence(0, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(1, 256, 65535, 2));

  const auto u32 = TokenFile::Open(dir.Write("u32", absl::string_view("\1\0\0\0\0\0\1\0", 8)),
                                   job::DataFormat::kTokensU32);
  ASSERT_TRUE(u32.ok());
  out.resize(2);
  ASSERT_TRUE(u32->ReadSequence(0, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(1, 65536));
}

TEST(TokenFileTest, LongSequencesAreReadInPieces) {
  const TempDir dir;
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(i * 7 % 251);
  const auto file = TokenFile::Open(dir.Write("t", bytes), job::DataFormat::kTextBytes);
  std::vector<int32_t> out(50'001);
  EXPECT_EQ(file->SequenceCount(49'999), 2);
  ASSERT_TRUE(file->ReadSequence(0, absl::MakeSpan(out)).ok());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], static_cast<int32_t>(static_cast<unsigned char>(bytes[i])));
  }
}

TEST(TokenFileTest, AppendedTokensMustLieBehindWhatWasReadMaskedOrNot) {
  const TempDir dir;
  const std::string ten(80, 'a');  // 10 sequences of 8, whose last has no label behind it: 9
  job::JobSpec job;
  job.data_path = dir.Write("t", ten);
  job.data_format = job::DataFormat::kTextBytes;
  job.sequence_length = 8;
  job.global_batch_size = 1;
  const auto begun = TokenFile::Open(job.data_path, job.data_format)->Fingerprint();
  dir.Write("t", ten + "more");
  for (const double masked : {0.0, 0.15}) {
    job.mask_probability = masked;
    EXPECT_TRUE(CheckDataAppended(job, *begun, 9).ok()) << masked;
    EXPECT_THAT(std::string(CheckDataAppended(job, *begun, 10).message()),
                HasSubstr("have gone on at its beginning"))
        << masked;
  }
}

TEST(TokenFileTest, OddSizesAndMissingFilesAreErrors) {
  const TempDir dir;
  for (const auto& [size, format] : std::initializer_list<std::pair<size_t, job::DataFormat>>{
           {0, job::DataFormat::kTextBytes},
           {3, job::DataFormat::kTokensU16},
           {6, job::DataFormat::kTokensU32}}) {
    const auto file = TokenFile::Open(dir.Write("t", std::string(size, 'x')), format);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("data.format"));
  }
  const auto missing = TokenFile::Open(dir.File("none"), job::DataFormat::kTextBytes);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("data.path"));
}

TEST(TokenFileTest, LessThanOneBatchIsAnError) {
  const TempDir dir;
  const auto file =
      TokenFile::Open(dir.Write("t", std::string(33, 'x')), job::DataFormat::kTextBytes);
  EXPECT_TRUE(file->Validate(256, 8, 4).ok());
  const absl::Status status = file->Validate(256, 8, 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at least 41 tokens"));
}

TEST(TokenFileTest, TokensBeyondTheVocabularyAreNamedByPosition) {
  const TempDir dir;
  std::string bytes(3'000'000, '\1');
  bytes[2'000'001] = '\x80';
  const auto text = TokenFile::Open(dir.Write("t", bytes), job::DataFormat::kTextBytes);
  EXPECT_TRUE(text->Validate(256, 8, 1).ok());
  EXPECT_TRUE(text->Validate(129, 8, 1).ok());
  EXPECT_THAT(std::string(text->Validate(128, 8, 1).message()),
              HasSubstr("token 128 at position 2000001"));
  const auto u16 = TokenFile::Open(dir.File("t"), job::DataFormat::kTokensU16);
  EXPECT_THAT(std::string(u16->Validate(1000, 8, 1).message()),
              HasSubstr("token 32769 at position 1000000"));
  const auto u32 = TokenFile::Open(dir.File("t"), job::DataFormat::kTokensU32);
  EXPECT_THAT(std::string(u32->Validate(0x7fffffff, 8, 1).message()), HasSubstr(""));
  EXPECT_THAT(std::string(u32->Validate(50257, 8, 1).message()), HasSubstr("at position 0 "));
}

TEST(TokenFileTest, AModelWithoutAVocabularyTakesAnyThatAreNumbersOf32Bits) {
  const TempDir dir;
  std::string bytes(64, '\1');
  for (job::DataFormat format :
       {job::DataFormat::kTextBytes, job::DataFormat::kTokensU16, job::DataFormat::kTokensU32}) {
    EXPECT_TRUE(TokenFile::Open(dir.Write("t", bytes), format)->Validate(0, 3, 1).ok());
  }
  bytes[11] = '\x80';
  const auto u32 = TokenFile::Open(dir.Write("u", bytes), job::DataFormat::kTokensU32);
  EXPECT_THAT(std::string(u32->Validate(0, 3, 1).message()),
              HasSubstr("at position 2 (byte 8) is not below 2147483648"));
}

TEST(TokenFileTest, FilesOfOtherKindsAreCalledByTheirName) {
  const TempDir dir;
  const std::pair<std::string, const char*> files[] = {
      {std::string("\x93NUMPY\x01\0", 8), "NumPy"},
      {std::string("PK\x03\x04....", 8), "zip"},
      {std::string("\x1f\x8b\x08.....", 8), "gzip"},
      {std::string("PAR1....", 8), "parquet"},
      {std::string("MMIDIDX\0\0", 9) + std::string(7, 'x'), ".bin"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 4\n", "git lfs pull"},
      {std::string("\x20\0\0\0\0\0\0\0{\"a\":", 13) + std::string(51, ' '), "safetensors"}};
  for (const auto& [bytes, name] : files) {
    const auto file = TokenFile::Open(dir.Write("t", bytes), job::DataFormat::kTextBytes);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(name));
  }
  // Whatever their size.
  const auto odd =
      TokenFile::Open(dir.Write("t", std::string("PK\x03\x04...", 7)), job::DataFormat::kTokensU16);
  EXPECT_THAT(std::string(odd.status().message()), HasSubstr("zip"));
  const std::string prose(300, 'a');
  EXPECT_TRUE(TokenFile::Open(dir.Write("t", prose), job::DataFormat::kTextBytes).ok());
  const auto text = TokenFile::Open(dir.Write("t", prose), job::DataFormat::kTokensU16);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("is text: give format: text-bytes"));
  // Text that begins alike is text.
  EXPECT_TRUE(
      TokenFile::Open(dir.Write("t", "PKW stands for car"), job::DataFormat::kTextBytes).ok());
  EXPECT_TRUE(
      TokenFile::Open(dir.Write("t", "version https://"), job::DataFormat::kTextBytes).ok());
}

// The same numbers in three types; every second one is beyond 65535 where they are large.
struct Numbers {
  explicit Numbers(bool large) {
    for (int i = 0; i < 1000; ++i) {
      const char bytes[8] = {static_cast<char>(i * 31 % 255 + 1),
                             static_cast<char>(i * 7 % 255 + 1),
                             static_cast<char>(large ? i % 2 : 0)};
      u16.append(bytes, 2);
      u32.append(bytes, 4);
      u64.append(bytes, 8);
    }
  }
  std::string u16, u32, u64;
};

// What is said of such a file; empty: nothing.
std::string Refusal(const std::string& bytes, job::DataFormat format, int64_t vocab_size) {
  const TempDir dir;
  const auto file = TokenFile::Open(dir.Write("t", bytes), format);
  return std::string(file->Validate(vocab_size, 8, 1).message());
}

TEST(TokenFileTest, TokensOfAWiderTypeAreRefused) {
  Numbers numbers(/*large=*/false);
  const auto check = [](const std::string& bytes, job::DataFormat format) {
    return Refusal(bytes, format, 1 << 16);
  };
  EXPECT_EQ(check(numbers.u16, job::DataFormat::kTokensU16), "");
  EXPECT_THAT(check(numbers.u32, job::DataFormat::kTokensU16), HasSubstr("numbers of 4 bytes"));
  EXPECT_THAT(check(numbers.u64, job::DataFormat::kTokensU16), HasSubstr("numbers of 8 bytes"));
  EXPECT_EQ(check(numbers.u32, job::DataFormat::kTokensU32), "");
  EXPECT_THAT(check(numbers.u64, job::DataFormat::kTokensU32), HasSubstr("numbers of 8 bytes"));
  // One token that is not zero among them, and zeros only, say nothing of the kind.
  numbers.u32[2] = 1;
  EXPECT_EQ(check(numbers.u32, job::DataFormat::kTokensU16), "");
  EXPECT_EQ(check(std::string(4000, '\0'), job::DataFormat::kTokensU16), "");
}

// Their upper halves are not all 0.
TEST(TokenFileTest, SoAreThoseOfALargeVocabulary) {
  Numbers numbers(/*large=*/true);
  const auto check = [](const std::string& bytes, job::DataFormat format) {
    return Refusal(bytes, format, 1 << 17);
  };
  EXPECT_EQ(check(numbers.u16, job::DataFormat::kTokensU16), "");
  EXPECT_EQ(check(numbers.u32, job::DataFormat::kTokensU32), "");
  EXPECT_THAT(check(numbers.u32, job::DataFormat::kTokensU16), HasSubstr("numbers of 4 bytes"));
  EXPECT_THAT(check(numbers.u64, job::DataFormat::kTokensU16), HasSubstr("numbers of 8 bytes"));
  EXPECT_THAT(check(numbers.u64, job::DataFormat::kTokensU32), HasSubstr("numbers of 8 bytes"));
  numbers.u32[2] = 2;  // beyond the vocabulary, so of no such number
  EXPECT_EQ(check(numbers.u32, job::DataFormat::kTokensU16), "");
}

TEST(TokenFileTest, TheFingerprintTellsAppendedAndChangedData) {
  const TempDir dir;
  const auto of = [&](const std::string& bytes) {
    const auto file = TokenFile::Open(dir.Write("t", bytes), job::DataFormat::kTextBytes);
    return *file->Fingerprint();
  };
  const std::string bytes(3'000'000, 'x');
  const DataFingerprint whole = of(bytes);
  EXPECT_EQ(whole.bytes, 3'000'000);
  EXPECT_EQ(whole.hashed_bytes, 3'000'000);
  EXPECT_EQ(of(bytes), whole);
  EXPECT_NE(of(bytes + "x"), whole);
  std::string changed = bytes;
  changed[2'345'678] = 'y';
  EXPECT_NE(of(changed), whole);
}

TEST(TokenFileTest, OfAFileThatHasGrownTheFirstBytesAreWhatTheyWere) {
  const TempDir dir;
  const std::string bytes = "0123456789";
  const auto before = TokenFile::Open(dir.Write("t", bytes), job::DataFormat::kTokensU16);
  // What is appended last may not be a whole token yet.
  const auto after =
      TokenFile::Open(dir.Write("t", bytes + "abc"), job::DataFormat::kTokensU16, 10);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*after->Fingerprint(), *before->Fingerprint());
  EXPECT_EQ(after->SequenceCount(2), before->SequenceCount(2));
  const auto cut = TokenFile::Open(dir.Write("t", "01234567"), job::DataFormat::kTokensU16, 10);
  EXPECT_EQ(cut->token_count(), 4);
}

TEST(TokenFileTest, OfALargeFilePiecesAreHashedAndTheEnds) {
  const TempDir dir;
  const std::string path = dir.Write("t", "a");
  const int64_t size = 2 * kHashedWhole + 12'345;
  std::filesystem::resize_file(path, static_cast<uintmax_t>(size));  // sparse
  const auto now = [&] {
    return *TokenFile::Open(path, job::DataFormat::kTextBytes)->Fingerprint();
  };
  const DataFingerprint before = now();
  EXPECT_EQ(before.bytes, size);
  EXPECT_EQ(before.hashed_bytes, kHashedWhole);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(size - 1);
  file.put('z');
  file.close();
  EXPECT_NE(now(), before);
}

TEST(TokenFileTest, AFileThatShrinksIsAnErrorNotASignal) {
  const TempDir dir;
  const auto file =
      TokenFile::Open(dir.Write("t", std::string(1000, 'x')), job::DataFormat::kTextBytes);
  std::filesystem::resize_file(dir.File("t"), 10);
  std::vector<int32_t> out(101);
  EXPECT_EQ(file->ReadSequence(5, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace harmony::io
