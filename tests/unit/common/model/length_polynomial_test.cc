#include "common/model/length_polynomial.h"

#include <gtest/gtest.h>

#include <string>

namespace harmony::model {
namespace {

TEST(LengthPolynomialTest, ATextIsReadAsItIsWritten) {
  for (const char* const text : {"s", "n", "3*n", "12", "0", "n*s", "2*n*s*s+n", "4*s*s-3*s+7",
                                 "s-1", "4611686018427387904*s*s*s*s-1"}) {
    const auto read = ParseLengthText(text);
    ASSERT_TRUE(read.has_value()) << text;
    EXPECT_EQ(ToText(*read), text);
  }
  for (const char* const text : {"",      "+s",        "s+0",  "0*s",  "1*s",
                                 "s*2",   "n*2",       "s*n",  "s+n",  "n*s+s",
                                 "s + 1", "s+s*s",     "s-",   "s--1", "2*3*s",
                                 "S",     "s*s*s*s*s", "2**s", "01*s", "9223372036854775808*s"}) {
    EXPECT_FALSE(ParseLengthText(text).has_value()) << text;
  }
}

TEST(LengthPolynomialTest, ValuesAreExactAndStopAtTheMost) {
  const LengthPolynomial amount = ParseLengthText("2*s*s-3*s+1")->amount;
  EXPECT_EQ(amount.At(5), 36);
  EXPECT_FALSE(amount.is_number());
  EXPECT_EQ(LengthPolynomial(7).At(1000), 7);
  EXPECT_EQ(ParseLengthText("4611686018427387904*s*s*s*s")->amount.At(1 << 24),
            LengthPolynomial::kMostValue);
}

TEST(LengthPolynomialTest, WhatFallsIsSeenByItsCoefficients) {
  EXPECT_TRUE(ParseLengthText("s-1")->amount.NeverFalls(1));
  EXPECT_FALSE(ParseLengthText("s-2")->amount.NeverFalls(1));
  EXPECT_TRUE(ParseLengthText("s*s-3*s+2")->amount.NeverFalls(2));
  EXPECT_FALSE(ParseLengthText("s*s-3*s+2")->amount.NeverFalls(1));  // -1/4 at 3/2
  EXPECT_FALSE(LengthPolynomial(-1).NeverFalls(1));
  EXPECT_FALSE(ParseLengthText("4611686018427387904*s*s*s*s")->amount.NeverFalls(1 << 24));
}

TEST(LengthPolynomialTest, ProductsThatAreTooLargeAreNone) {
  const LengthPolynomial s = ParseLengthText("s")->amount, cubed = ParseLengthText("s*s*s")->amount;
  EXPECT_EQ(ToText({*LengthPolynomial::Product(s, ParseLengthText("2*s-1")->amount)}), "2*s*s-s");
  EXPECT_FALSE(LengthPolynomial::Product(cubed, ParseLengthText("s*s")->amount).has_value());
  EXPECT_FALSE(LengthPolynomial::Product(INT64_MAX, 2).has_value());
  EXPECT_EQ(*LengthPolynomial::Difference(cubed, cubed), LengthPolynomial(0));
  EXPECT_FALSE(LengthPolynomial::Difference(INT64_MIN, 1).has_value());
}

}  // namespace
}  // namespace harmony::model
