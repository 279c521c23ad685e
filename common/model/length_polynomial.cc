#include "common/model/length_polynomial.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace harmony::model {
namespace {

// Of a text longer than any that is written: no more of it is looked at.
constexpr size_t kMostText = 256;

// Adds a term such as "2*n*s" to the coefficients; false where it is none.
bool AddTerm(absl::string_view term, bool negative, LengthPolynomial::Coefficients& sum,
             bool& times_samples) {
  int64_t factor = 1;
  size_t power = 0;
  times_samples = false;
  for (const absl::string_view part : absl::StrSplit(term, '*')) {
    if (part == "n") {
      times_samples = true;
    } else if (part == "s") {
      ++power;
    } else if (!absl::SimpleAtoi(part, &factor) || factor > LengthPolynomial::kMostValue) {
      return false;
    }
  }
  if (power >= sum.size()) return false;
  sum[power] = negative ? -factor : factor;
  return true;
}

}  // namespace

bool LengthPolynomial::is_number() const {
  return std::all_of(coefficients_.begin() + 1, coefficients_.end(),
                     [](int64_t coefficient) { return coefficient == 0; });
}

int64_t LengthPolynomial::At(int64_t length) const {
  __int128 value = 0;
  for (auto coefficient = coefficients_.rbegin(); coefficient != coefficients_.rend();
       ++coefficient) {
    value = value * length + *coefficient;
    value = std::clamp<__int128>(value, -kMostValue, kMostValue);
  }
  return static_cast<int64_t>(value);
}

bool LengthPolynomial::NeverFalls(int64_t least) const {
  Coefficients shifted = coefficients_;
  for (size_t done = 0; done < kMostPower; ++done) {
    for (size_t power = kMostPower; power-- > done;) {
      int64_t product = 0;
      if (__builtin_mul_overflow(shifted[power + 1], least, &product) ||
          __builtin_add_overflow(shifted[power], product, &shifted[power])) {
        return false;
      }
    }
  }
  return std::all_of(shifted.begin(), shifted.end(),
                     [](int64_t coefficient) { return coefficient >= 0; });
}

std::optional<LengthPolynomial> LengthPolynomial::Product(const LengthPolynomial& a,
                                                          const LengthPolynomial& b) {
  Coefficients sum{};
  for (size_t i = 0; i < sum.size(); ++i) {
    for (size_t j = 0; j < sum.size(); ++j) {
      int64_t product = 0;
      if (a.coefficients_[i] == 0 || b.coefficients_[j] == 0) continue;
      if (i + j > kMostPower ||
          __builtin_mul_overflow(a.coefficients_[i], b.coefficients_[j], &product) ||
          __builtin_add_overflow(sum[i + j], product, &sum[i + j])) {
        return std::nullopt;
      }
    }
  }
  return LengthPolynomial(sum);
}

std::optional<LengthPolynomial> LengthPolynomial::Difference(const LengthPolynomial& a,
                                                             const LengthPolynomial& b) {
  Coefficients difference{};
  for (size_t i = 0; i < difference.size(); ++i) {
    if (__builtin_sub_overflow(a.coefficients_[i], b.coefficients_[i], &difference[i])) {
      return std::nullopt;
    }
  }
  return LengthPolynomial(difference);
}

std::optional<LengthText> ParseLengthText(absl::string_view text) {
  if (text.size() > kMostText) return std::nullopt;
  LengthPolynomial::Coefficients coefficients{};
  LengthText read;
  size_t begin = 0;
  while (begin < text.size()) {
    const bool negative = text[begin] == '-';
    if (negative || text[begin] == '+') ++begin;
    const size_t end = std::min(text.find_first_of("+-", begin), text.size());
    if (!AddTerm(text.substr(begin, end - begin), negative, coefficients, read.times_samples)) {
      return std::nullopt;
    }
    begin = end;
  }
  read.amount = LengthPolynomial(coefficients);
  // Whatever else could be read as the same amount is no other way to write it.
  if (ToText(read) != text) return std::nullopt;
  return read;
}

std::string ToText(const LengthText& text) {
  std::string written;
  const LengthPolynomial::Coefficients& coefficients = text.amount.coefficients();
  for (size_t power = coefficients.size(); power-- > 0;) {
    const int64_t coefficient = coefficients[power];
    if (coefficient == 0) continue;
    const uint64_t size = coefficient < 0 ? -static_cast<uint64_t>(coefficient) : coefficient;
    std::vector<std::string> factors;
    if (size != 1 || (power == 0 && !text.times_samples)) factors.push_back(absl::StrCat(size));
    if (text.times_samples) factors.push_back("n");
    factors.insert(factors.end(), power, "s");
    const char* const sign = coefficient < 0 ? "-" : written.empty() ? "" : "+";
    absl::StrAppend(&written, sign, absl::StrJoin(factors, "*"));
  }
  return written.empty() ? "0" : written;
}

}  // namespace harmony::model
