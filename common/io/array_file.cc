#include "common/io/array_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/io/safetensors.h"

namespace harmony::io {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
// Version 1 of the format can say no more.
constexpr int64_t kMostHeader = 1 << 16;
constexpr int64_t kMostExtent = int64_t{1} << 40;
constexpr int64_t kCheckedBytes = 1 << 20;
constexpr size_t kMostDimensions = 32;

struct NpyType {
  absl::string_view name;
  DType dtype;
};
// '<' is little-endian, '|' where there is no order.
constexpr std::array<NpyType, 13> kTypes = {{{"<f4", DType::kF32},
                                             {"<f2", DType::kF16},
                                             {"<f8", DType::kF64},
                                             {"<i8", DType::kI64},
                                             {"<i4", DType::kI32},
                                             {"<i2", DType::kI16},
                                             {"|i1", DType::kI8},
                                             {"|u1", DType::kU8},
                                             {"<u2", DType::kU16},
                                             {"<u4", DType::kU32},
                                             {"<u8", DType::kU64},
                                             {"|b1", DType::kBool},
                                             {"<b1", DType::kBool}}};

// The few forms that a header's Python literal takes.
class Literal {
 public:
  explicit Literal(absl::string_view text) : rest_(text) {}

  bool Take(absl::string_view token) {
    Skip();
    return absl::ConsumePrefix(&rest_, token);
  }
  std::optional<std::string> Text() {
    Skip();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::optional<int64_t> Number() {
    Skip();
    size_t digits = 0;
    while (digits < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[digits])) != 0) {
      ++digits;
    }
    int64_t number = 0;
    if (!absl::SimpleAtoi(rest_.substr(0, digits), &number)) return std::nullopt;
    rest_.remove_prefix(digits);
    return number;
  }
  bool AtEnd() {
    Skip();
    return rest_.empty();
  }

 private:
  void Skip() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_[0])) != 0) {
      rest_.remove_prefix(1);
    }
  }
  absl::string_view rest_;
};

struct NpyFields {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
std::optional<NpyFields> ReadFields(absl::string_view text) {
  Literal literal(text);
  NpyFields fields;
  if (!literal.Take("{")) return std::nullopt;
  while (!literal.Take("}")) {
    const std::optional<std::string> key = literal.Text();
    if (!key || !literal.Take(":")) return std::nullopt;
    if (*key == "descr" && !fields.descr) {
      // A list of fields is a structured type.
      fields.descr = literal.Text();
      if (!fields.descr) return std::nullopt;
    } else if (*key == "fortran_order" && !fields.fortran_order) {
      const bool yes = literal.Take("True");
      if (!yes && !literal.Take("False")) return std::nullopt;
      fields.fortran_order = yes;
    } else if (*key == "shape" && !fields.shape) {
      if (!literal.Take("(")) return std::nullopt;
      fields.shape.emplace();
      while (!literal.Take(")")) {
        const std::optional<int64_t> extent = literal.Number();
        if (!extent || *extent > kMostExtent) return std::nullopt;
        fields.shape->push_back(*extent);
        if (fields.shape->size() > kMostDimensions) return std::nullopt;
        if (literal.Take(",")) continue;
        if (!literal.Take(")")) return std::nullopt;
        break;
      }
    } else {
      return std::nullopt;
    }
    literal.Take(",");
  }
  if (!literal.AtEnd() || !fields.descr || !fields.fortran_order || !fields.shape) {
    return std::nullopt;
  }
  return fields;
}

absl::Status Wrong(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

// Bytes of a sample; nothing when all samples together would not fit 2^62 bytes.
std::optional<int64_t> SampleBytes(const ArrayHeader& header) {
  int64_t bytes = SizeOf(header.dtype).count(), all = 0;
  for (size_t i = 1; i < header.shape.size(); ++i) {
    if (__builtin_mul_overflow(bytes, header.shape[i], &bytes)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bytes, header.shape[0], &all) || all > (int64_t{1} << 62)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<ArrayHeader> ParseNpyHeader(absl::string_view start, int64_t file_size,
                                           absl::string_view where) {
  if (!absl::StartsWith(start, kMagic) || start.size() < 12) {
    return Wrong(where, "is no NumPy array (.npy)");
  }
  const auto byte = [&](size_t i) { return static_cast<int64_t>(static_cast<uint8_t>(start[i])); };
  const int64_t version = byte(6);
  if (version < 1 || version > 3) {
    return Wrong(where, absl::StrCat("is a NumPy array of version ", version,
                                     ", which is not known; save it again by numpy.save"));
  }
  const int64_t prefix = version == 1 ? 10 : 12;
  const int64_t length = version == 1 ? byte(8) | byte(9) << 8
                                      : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (length > kMostHeader || prefix + length > static_cast<int64_t>(start.size())) {
    return Wrong(where, "is cut, or its header is damaged");
  }
  const std::optional<NpyFields> fields =
      ReadFields(start.substr(static_cast<size_t>(prefix), static_cast<size_t>(length)));
  if (!fields) return Wrong(where, "has a header that cannot be read: it must be a plain array");
  const auto* const type = std::find_if(kTypes.begin(), kTypes.end(), [&](const NpyType& known) {
    return known.name == *fields->descr;
  });
  if (type == kTypes.end()) {
    return Wrong(where, absl::StrCat("is of NumPy's type '", fields->descr->substr(0, 40),
                                     "', which cannot be used; convert it by array.astype"));
  }
  if (*fields->fortran_order && fields->shape->size() > 1) {
    return Wrong(where, "is in Fortran order; save numpy.ascontiguousarray(array)");
  }
  ArrayHeader header{type->dtype, *fields->shape, prefix + length};
  if (header.shape.empty()) return Wrong(where, "is a single number, no array of samples");
  const std::optional<int64_t> sample = SampleBytes(header);
  if (!sample || header.begin + *sample * header.shape[0] != file_size) {
    return Wrong(where,
                 absl::StrCat("has ", file_size, " bytes, which is not what its header says (",
                              ShapeString(header.shape), " of ", ToString(header.dtype),
                              "): it is cut or damaged"));
  }
  return header;
}

absl::StatusOr<ArrayFile> ArrayFile::Open(const std::string& path, absl::string_view tensor) {
  HARMONY_ASSIGN_OR_RETURN(File file, File::OpenForReading(path));
  HARMONY_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  std::string start(static_cast<size_t>(std::min<int64_t>(size, kMostHeader + 12)), '\0');
  HARMONY_RETURN_IF_ERROR(file.ReadAt(0, start.data(), static_cast<int64_t>(start.size())));
  if (IsGitLfsPointer(start)) return Wrong(path, absl::StrCat("is ", kGitLfsAdvice));
  ArrayHeader header;
  if (absl::StartsWith(start, kMagic)) {
    HARMONY_ASSIGN_OR_RETURN(header, ParseNpyHeader(start, size, path));
  } else {
    if (!SafetensorsHeaderSize(start, size, path).ok()) {
      return Wrong(path, "is neither a NumPy array (.npy) nor a safetensors file");
    }
    HARMONY_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                             ReadSafetensorsHeader(file));
    const auto entry =
        std::find_if(entries.begin(), entries.end(),
                     [&](const SafetensorsEntry& each) { return each.name == tensor; });
    if (entry == entries.end()) {
      return Wrong(path, absl::StrCat("holds no tensor '", tensor, "', as the input is called"));
    }
    header = {entry->dtype, entry->shape, entry->begin};
    if (header.shape.empty()) return Wrong(path, "is a single number, no array of samples");
  }
  const int64_t sample_bytes = SampleBytes(header).value_or(0);
  return ArrayFile(std::move(file), std::move(header), sample_bytes);
}

absl::Status ArrayFile::Read(int64_t first, int64_t count, void* out) const {
  return file_.ReadAt(header_.begin + first * sample_bytes_, out, count * sample_bytes_);
}

absl::StatusOr<ArrayFile::OutOfRange> ArrayFile::FindOutOfRange(
    const model::ValueRange& range) const {
  const int64_t width = SizeOf(header_.dtype).count();
  const int64_t numbers = sample_bytes_ * samples() / width;
  const int64_t per_sample = sample_bytes_ / width;
  if (!model::HasRanges(header_.dtype)) {
    return Wrong(path(), absl::StrCat("is of type ", ToString(header_.dtype),
                                      ", in which no ranges can be checked"));
  }
  const auto buffer = std::make_unique<char[]>(kCheckedBytes);  // aligned as any new array is
  for (int64_t at = 0; at < numbers; at += kCheckedBytes / width) {
    const int64_t count = std::min(kCheckedBytes / width, numbers - at);
    HARMONY_RETURN_IF_ERROR(file_.ReadAt(header_.begin + at * width, buffer.get(), count * width));
    const int64_t found = model::FirstOutside(buffer.get(), header_.dtype, count, range);
    if (found < 0) continue;
    return OutOfRange{(at + found) / per_sample, (at + found) % per_sample,
                      model::IntegerAt(buffer.get(), header_.dtype, found)};
  }
  return OutOfRange();
}

}  // namespace harmony::io
