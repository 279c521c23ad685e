#include "common/io/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::io {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr int64_t kScanBytes = 1 << 20;
constexpr int64_t kPieceTokens = 1 << 14;
constexpr int64_t kWidthTokens = 4096;  // that are looked at to tell the type's width
constexpr int64_t kHeadBytes = 256;     // that are looked at to tell the kind of file

// How files of other kinds begin.
struct Magic {
  absl::string_view bytes, kind;
};
constexpr Magic kMagics[] = {
    {"\x93NUMPY", "a NumPy array (.npy): write the bare numbers, array.tofile(FILE)"},
    {"PK\x03\x04", "a zip archive (.npz, .zip, .pt): unpack it and write the bare numbers"},
    {"\x1f\x8b", "compressed by gzip: unpack it"},
    {absl::string_view("\x28\xb5\x2f\xfd", 4), "compressed by zstd: unpack it"},
    {absl::string_view("BZh", 3), "compressed by bzip2: unpack it"},
    {absl::string_view("\xfd"
                       "7zXZ",
                       5),
     "compressed by xz: unpack it"},
    {"PAR1", "a parquet file: write its tokens as bare numbers"},
    {"ARROW1", "an Arrow file: write its tokens as bare numbers"},
    {absl::string_view("\x80\x02\x8a\x0alF", 6), "a PyTorch pickle: write the bare numbers"},
    {absl::string_view("\x89HDF\r\n", 6), "an HDF5 file: write its tokens as bare numbers"},
    {"MMIDIDX", "the index of a Megatron data set: give its .bin file"},
};

// {u64 header size; '{"'...}: a length that fits the file, and JSON behind it.
bool IsSafetensors(absl::string_view head, int64_t size) {
  if (head.size() < 10 || head.substr(8, 2) != "{\"") return false;
  uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(head[i]);
  return header <= static_cast<uint64_t>(size);
}

// Printable characters alone: numbers of tokens have others among so many bytes.
bool IsText(absl::string_view head) {
  return std::ssize(head) == kHeadBytes && std::all_of(head.begin(), head.end(), [](char c) {
           return absl::ascii_isprint(static_cast<unsigned char>(c)) ||
                  absl::ascii_isspace(static_cast<unsigned char>(c));
         });
}

// The position of the first of `count` tokens that is not below `limit`, or -1. The first pass only
// takes the maximum, which the compiler vectorises.
template <typename Token>
int64_t FindTooLarge(const char* bytes, int64_t count, uint64_t limit, uint64_t* found) {
  const Token* tokens = reinterpret_cast<const Token*>(bytes);  // the buffer is aligned for all
  Token most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, tokens[i]);
  if (most < limit) return -1;
  for (int64_t i = 0;; ++i) {
    if (tokens[i] >= limit) {
      *found = tokens[i];
      return i;
    }
  }
}

template <typename Token>
void Widen(const char* bytes, absl::Span<int32_t> out) {
  const Token* tokens = reinterpret_cast<const Token*>(bytes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(tokens[i]);
}

}  // namespace

int64_t TokenBytes(job::DataFormat format) {
  switch (format) {
    case job::DataFormat::kTextBytes:
      return 1;
    case job::DataFormat::kTokensU16:
      return 2;
    case job::DataFormat::kTokensU32:
      return 4;
  }
  return 1;
}

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, job::DataFormat format,
                                          int64_t bytes) {
  auto file = File::OpenForReading(path);
  if (!file.ok()) return WithContext(file.status(), "data.path");
  HARMONY_ASSIGN_OR_RETURN(int64_t size, file->Size());
  size = std::min(size, bytes);
  const int64_t width = TokenBytes(format);
  TokenFile tokens(*std::move(file), format, size / width);
  HARMONY_RETURN_IF_ERROR(tokens.CheckKind(size));
  if (size == 0 || size % width != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path: ", path, ": has ", size, " bytes, which is ",
        size == 0 ? "no data" : absl::StrCat("no whole number of ", width, "-byte tokens"),
        "; check data.format"));
  }
  return tokens;
}

absl::Status TokenFile::CheckKind(int64_t size) const {
  char buffer[kHeadBytes];
  const int64_t length = std::min<int64_t>(size, sizeof(buffer));
  HARMONY_RETURN_IF_ERROR(file_.ReadAt(0, buffer, length));
  const absl::string_view head(buffer, static_cast<size_t>(length));
  const auto refuse = [this](absl::string_view kind) {
    return absl::InvalidArgumentError(absl::StrCat("data.path: ", path(), ": is ", kind));
  };
  if (IsGitLfsPointer(head)) return refuse(kGitLfsAdvice);
  for (const Magic& magic : kMagics) {
    if (absl::StartsWith(head, magic.bytes)) return refuse(magic.kind);
  }
  if (IsSafetensors(head, size)) {
    return refuse("a safetensors file: write its tokens as bare numbers");
  }
  if (format_ != job::DataFormat::kTextBytes && IsText(head)) {
    return refuse("text: give format: text-bytes, or write the numbers of its tokens");
  }
  return absl::OkStatus();
}

// Little-endian numbers of a wider type have their upper parts where a narrower one has tokens: at
// every second token, or at all but every fourth, nothing above what the vocabulary's upper part
// is, which mostly is 0. A file of real tokens has no such comb over thousands of them.
absl::Status TokenFile::CheckWidth(int64_t vocab_size) const {
  const int64_t width = TokenBytes(format_);
  const int64_t count = std::min(token_count_, kWidthTokens) / 4 * 4;
  if (count < 16) return absl::OkStatus();
  std::vector<char> bytes(static_cast<size_t>(count * width));
  HARMONY_RETURN_IF_ERROR(file_.ReadAt(0, bytes.data(), count * width));
  uint32_t most[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i < count; ++i) {
    uint32_t token = 0;
    std::memcpy(&token, &bytes[static_cast<size_t>(i * width)], static_cast<size_t>(width));
    most[i % 4] = std::max(most[i % 4], token);
  }
  // Bytes of a text may be anything below a large vocabulary's upper byte.
  const uint32_t upper = width == 2 ? static_cast<uint32_t>((vocab_size - 1) >> 16) : 0;
  const bool wider = most[1] <= upper && most[3] <= upper && std::max(most[0], most[2]) > upper;
  if (!wider) return absl::OkStatus();
  const int64_t factor = most[2] == 0 && most[3] == 0 && width < 4 ? 4 : 2;
  const std::string low = upper == 0 ? "0" : absl::StrCat("at most ", upper);
  return absl::InvalidArgumentError(absl::StrCat(
      "data.path: ", path(), ": of its first ", count, " tokens ",
      factor == 4 ? "all but every fourth are " : "every second one is ", low,
      ", as in a file of numbers of ", factor * width, " bytes read as numbers of ", width,
      "; check data.format", width == 4 ? ", or write the tokens as numbers of 4 bytes" : ""));
}

absl::StatusOr<DataFingerprint> TokenFile::Fingerprint() const {
  return FingerprintOf(file_, token_count_ * TokenBytes(format_));
}

int64_t TokenFile::Sequences(int64_t tokens, int64_t sequence_length) {
  return (tokens - 1) / sequence_length;
}

int64_t TokenFile::SequenceCount(int64_t sequence_length) const {
  return Sequences(token_count_, sequence_length);
}

absl::Status TokenFile::Validate(int64_t vocab_size, int64_t sequence_length,
                                 int64_t global_batch) const {
  const int64_t sequences = SequenceCount(sequence_length);
  if (sequences < global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.path: ", path(), ": its ", token_count_, " tokens make ", sequences,
                     " sequences of ", sequence_length, ", fewer than one batch of ", global_batch,
                     "; it needs at least ", sequence_length * global_batch + 1,
                     " tokens (or lower global_batch_size or sequence_length)"));
  }
  if (vocab_size > 0) HARMONY_RETURN_IF_ERROR(CheckWidth(vocab_size));
  return CheckTokens(vocab_size);
}

absl::Status TokenFile::CheckTokens(int64_t vocab_size) const {
  const int64_t width = TokenBytes(format_);
  // Sequences are read as numbers of 32 bits with a sign.
  const int64_t below = vocab_size > 0 ? vocab_size : int64_t{1} << 31;
  if (width < 4 && below >= (int64_t{1} << (8 * width))) return absl::OkStatus();
  const auto buffer = std::make_unique<char[]>(kScanBytes);  // aligned as any new array is
  const int64_t size = token_count_ * width;
  const uint64_t limit = static_cast<uint64_t>(below);
  for (int64_t at = 0; at < size; at += kScanBytes) {
    const int64_t piece = std::min(kScanBytes, size - at);
    HARMONY_RETURN_IF_ERROR(file_.ReadAt(at, buffer.get(), piece));
    uint64_t token = 0;
    const int64_t count = piece / width;
    const int64_t position = width == 1 ? FindTooLarge<uint8_t>(buffer.get(), count, limit, &token)
                             : width == 2
                                 ? FindTooLarge<uint16_t>(buffer.get(), count, limit, &token)
                                 : FindTooLarge<uint32_t>(buffer.get(), count, limit, &token);
    if (position >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.path: ", path(), ": token ", token, " at position ",
                       at / width + position, " (byte ", at + position * width, ") is not below ",
                       vocab_size > 0 ? "the model's vocabulary of " : "", below,
                       "; check data.format and the tokenizer"));
    }
  }
  return absl::OkStatus();
}

absl::Status TokenFile::ReadSequence(int64_t k, absl::Span<int32_t> out) const {
  const int64_t width = TokenBytes(format_);
  int64_t at = k * (static_cast<int64_t>(out.size()) - 1) * width;
  alignas(8) char buffer[kPieceTokens * 4];
  while (!out.empty()) {
    const auto piece = out.subspan(0, kPieceTokens);
    const int64_t bytes = static_cast<int64_t>(piece.size()) * width;
    HARMONY_RETURN_IF_ERROR(file_.ReadAt(at, buffer, bytes));
    width == 1   ? Widen<uint8_t>(buffer, piece)
    : width == 2 ? Widen<uint16_t>(buffer, piece)
                 : Widen<uint32_t>(buffer, piece);
    at += bytes;
    out.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

}  // namespace harmony::io
