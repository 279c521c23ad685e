#include "common/job/key_offers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/job/job_file.h"

namespace harmony::job {
namespace {

constexpr char kJob[] =
    "model_name_or_path: gpt2-mini\n"
    "data: {path: x, format: text-bytes}\n"
    "output_dir: out\n";

TEST(KeyOffersTest, AreKeysOfAJobFileWithValuesThatItTakes) {
  std::set<absl::string_view> names;
  for (const KeyOffer& offer : KeyOffers()) {
    EXPECT_TRUE(names.insert(offer.name).second) << offer.name << " twice";
    const auto message = [&offer](absl::string_view value) {
      JobOverrides set;
      set.settings = {absl::StrCat(offer.name, "=", value)};
      return std::string(ReadJobFile(kJob, "job.yaml", set).status().message());
    };
    EXPECT_THAT(message("?"), ::testing::Not(::testing::HasSubstr("unknown"))) << offer.name;
    for (const absl::string_view value : offer.values) {
      // Another key may be wanted with it, but the value itself is one.
      EXPECT_THAT(message(value),
                  ::testing::Not(::testing::ContainsRegex("one of: |true or false")))
          << offer.name;
    }
    if (!offer.values.empty()) {
      EXPECT_THAT(message("?"), ::testing::ContainsRegex("one of: |true or false")) << offer.name;
    }
  }
  EXPECT_TRUE(names.contains("data.path") && names.contains("epochs"));
}

}  // namespace
}  // namespace harmony::job
