#pragma once

// Sizes and amounts that depend on the length of a job's sequences: as exported models say them
// whose length is free (docs/model_format.md), until a job chooses one. PURE.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace harmony::model {

// A polynomial of the length s with whole coefficients, or simply a number.
class LengthPolynomial {
 public:
  static constexpr size_t kMostPower = 4;
  // Values stop here in either direction.
  static constexpr int64_t kMostValue = int64_t{1} << 62;
  using Coefficients = std::array<int64_t, kMostPower + 1>;  // by power

  // A number is the polynomial that has it everywhere.
  LengthPolynomial(int64_t number = 0) { coefficients_[0] = number; }
  explicit LengthPolynomial(const Coefficients& coefficients) : coefficients_(coefficients) {}

  bool is_number() const;
  // REQUIRES: is_number().
  int64_t number() const { return coefficients_[0]; }
  int64_t At(int64_t length) const;
  // Whether it is 0 or more at this length and falls nowhere above it, as its coefficients in
  // powers of (s - least) show: then its value at a greater length bounds all those before.
  bool NeverFalls(int64_t least) const;

  // Nothing where a coefficient or the power is too large.
  static std::optional<LengthPolynomial> Product(const LengthPolynomial& a,
                                                 const LengthPolynomial& b);
  static std::optional<LengthPolynomial> Difference(const LengthPolynomial& a,
                                                    const LengthPolynomial& b);

  const Coefficients& coefficients() const { return coefficients_; }
  bool operator==(const LengthPolynomial&) const = default;

 private:
  Coefficients coefficients_{};
};

// A text that an amount of one sample, or one that grows with the samples, is written as.
struct LengthText {
  LengthPolynomial amount;
  bool times_samples = false;
};
// Terms by falling powers of s, joined by + and -: "2*n*s*s+n". All of them have the factor n or
// none has. Nothing where the text is not exactly what ToText writes.
std::optional<LengthText> ParseLengthText(absl::string_view text);
std::string ToText(const LengthText& text);

}  // namespace harmony::model
