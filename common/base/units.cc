#include "common/base/units.h"

#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace harmony {
namespace {

struct Suffix {
  absl::string_view text;
  double factor;
};

constexpr std::array<Suffix, 13> kByteSuffixes = {{{"KiB", 1024.0},
                                                   {"MiB", 1048576.0},
                                                   {"GiB", 1073741824.0},
                                                   {"TiB", 1099511627776.0},
                                                   {"KB", 1e3},
                                                   {"kB", 1e3},
                                                   {"MB", 1e6},
                                                   {"GB", 1e9},
                                                   {"TB", 1e12},
                                                   {"K", 1024.0},
                                                   {"M", 1048576.0},
                                                   {"G", 1073741824.0},
                                                   {"B", 1.0}}};
constexpr std::array<Suffix, 4> kFlopSuffixes = {
    {{"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}};

// Splits "1.5GiB" into 1.5 and a factor. `limit` guards the conversion to an integer.
template <size_t N>
absl::StatusOr<double> ParseWithSuffix(absl::string_view text,
                                       const std::array<Suffix, N>& suffixes,
                                       absl::string_view what, absl::string_view example) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  double factor = 1.0;
  for (const Suffix& suffix : suffixes) {
    if (absl::ConsumeSuffix(&rest, suffix.text)) {
      factor = suffix.factor;
      break;
    }
  }
  double number = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(rest), &number) || !std::isfinite(number) ||
      number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not ", what, " (write it like ", example, ")"));
  }
  return number * factor;
}

}  // namespace

absl::StatusOr<Bytes> ParseBytes(absl::string_view text) {
  auto value = ParseWithSuffix(text, kByteSuffixes, "a size in bytes", "256MiB or 1.5GB");
  if (!value.ok()) return value.status();
  if (*value > 9e18) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is too large for a size in bytes"));
  }
  return Bytes(static_cast<int64_t>(std::llround(*value)));
}

absl::StatusOr<BytesPerSecond> ParseBytesPerSecond(absl::string_view text) {
  absl::string_view rest = text;
  absl::ConsumeSuffix(&rest, "/s");
  auto value = ParseWithSuffix(rest, kByteSuffixes, "a transfer rate", "1GB/s or 800MiB/s");
  if (!value.ok()) return value.status();
  return BytesPerSecond{*value};
}

absl::StatusOr<FlopsPerSecond> ParseFlops(absl::string_view text) {
  auto value = ParseWithSuffix(text, kFlopSuffixes, "a compute rate", "20G or 1.5T");
  if (!value.ok()) return value.status();
  return FlopsPerSecond{*value};
}

std::string FormatBytes(Bytes bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes.count());
  size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes.count(), " B")
                   : absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

std::string FormatBytesExact(Bytes bytes) {
  return absl::StrCat(FormatBytes(bytes), " (", bytes.count(), " B)");
}

std::string FormatDuration(Nanos nanos) {
  const double s = nanos.seconds();
  // From a minute on as people say it: two units, the second where it is not 0.
  struct Unit {
    const char* name;
    int64_t seconds;
  };
  static constexpr std::array<Unit, 4> kUnits = {
      {{"d", 86'400}, {"h", 3'600}, {"min", 60}, {"s", 1}}};
  const int64_t whole = s < 60 ? 0 : std::llround(s);
  for (size_t i = 0; i + 1 < kUnits.size(); ++i) {
    if (whole < kUnits[i].seconds) continue;
    const int64_t rest = whole % kUnits[i].seconds / kUnits[i + 1].seconds;
    std::string text = absl::StrCat(whole / kUnits[i].seconds, " ", kUnits[i].name);
    if (rest > 0) absl::StrAppend(&text, " ", rest, " ", kUnits[i + 1].name);
    return text;
  }
  if (s >= 1.0) return absl::StrFormat("%.2f s", s);
  if (s >= 1e-3) return absl::StrFormat("%.2f ms", s * 1e3);
  return absl::StrFormat("%.2f us", s * 1e6);
}

}  // namespace harmony
