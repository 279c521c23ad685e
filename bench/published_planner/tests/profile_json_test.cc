#include "bench/published_planner/files/profile_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/published_planner/files/schedule_json.h"

namespace harmony::published {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json GoodProfile() {
  return Json::parse(R"({
    "schema": "layer-profile/1", "model": "two", "sample": "one", "dtype": "float32",
    "optimizer": "Adam", "layers": 2, "param_bytes": [10, 0], "grad_bytes": [10, 0],
    "buffer_bytes": [1, 0], "optimizer_state_bytes": [20, 0], "update_time_s": [0.5, 0],
    "input_bytes_per_sample": [4, 8], "output_bytes_per_sample": [8, 0],
    "fwd": {"microbatch": [1, 2], "time_s": [[1.5, 2], [1, 2]],
            "peak_bytes": [[30, 40], [10, 20]]},
    "bwd": {"microbatch": [1], "time_s": [[3], [2]], "peak_bytes": [[60], [20]]}})");
}

std::string ErrorOf(const Json& json) {
  return std::string(ParseLayerProfile(json.dump(), "p.json").status().message());
}

TEST(ProfileJsonTest, ReadsAProfile) {
  const auto profile = ParseLayerProfile(GoodProfile().dump(), "p.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->layers(), 2);
  EXPECT_EQ(profile->forward.time_s[0][0], 1.5);
  EXPECT_EQ(profile->backward.peak_bytes[0][0], 60);
}

TEST(ProfileJsonTest, NamesFileAndFieldOfWhatIsWrong) {
  const struct {
    const char* pointer;
    Json value;  // null: removed
    const char* words;
  } cases[] = {
      {"/schema", "layer-profile/2", "schema is 'layer-profile/2'"},
      {"/schema", nullptr, "schema is missing"},
      {"/layers", 3, "param_bytes has 2 entries, but layers is 3"},
      {"/layers", 1.5, "layers is not a whole number"},
      {"/param_bytes", nullptr, "param_bytes is missing"},
      {"/grad_bytes", Json::array({10}), "grad_bytes has 1 entries instead of 2"},
      {"/grad_bytes/0", 11, "grad_bytes[0] is 11"},
      {"/buffer_bytes/1", -1, "buffer_bytes[1] is -1"},
      {"/buffer_bytes/1", uint64_t{1} << 63, "buffer_bytes[1] is too large"},
      {"/update_time_s/1", "x", "update_time_s[1] is not a number"},
      {"/output_bytes_per_sample/0", 7, "output_bytes_per_sample[0] is 7"},
      {"/fwd", nullptr, "fwd is missing"},
      {"/fwd", 3, "fwd.microbatch is not an object"},
      {"/fwd/microbatch", Json::array({2, 1}), "fwd.microbatch[1] is 1 after 2"},
      {"/fwd/microbatch", Json::array(), "fwd.microbatch is empty"},
      {"/fwd/time_s/1", Json::array({1}), "fwd.time_s[1] has 1 entries instead of 2"},
      {"/fwd/time_s/1/0", -0.5, "fwd.time_s[1][0] is -0.5"},
      {"/bwd/time_s", nullptr, "bwd.time_s is missing"},
      {"/bwd/time_s/0/0", 1e300, "bwd.time_s[0][0] is 1e+300"},
      {"/bwd/peak_bytes/1/0", -3, "bwd.peak_bytes[1][0] is -3"},
      {"/bwd/peak_bytes/1/0", 0.5, "bwd.peak_bytes[1][0] is not a whole number"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.words);
    Json json = GoodProfile();
    const Json::json_pointer pointer(c.pointer);
    if (c.value.is_null()) {
      json.at(pointer.parent_pointer()).erase(pointer.back());
    } else {
      json[pointer] = c.value;
    }
    EXPECT_THAT(ErrorOf(json), StartsWith("p.json: "));
    EXPECT_THAT(ErrorOf(json), HasSubstr(c.words));
  }
}

// Writers of JSON that let NaN and infinity through are common.
TEST(ProfileJsonTest, NamesTheFieldOfWhatIsNotJson) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999"}) {
    std::string text = GoodProfile().dump();
    const size_t place = text.find("[1.5,");
    ASSERT_NE(place, std::string::npos);
    text.replace(place, 4, std::string("[") + number);
    const auto profile = ParseLayerProfile(text, "p.json");
    const std::string message(profile.status().message());
    EXPECT_THAT(message, StartsWith("p.json: fwd.time_s[0][0] is no JSON value")) << number;
    EXPECT_THAT(message, HasSubstr("write a finite number")) << number;
  }
  const std::string deep(1000, '[');
  EXPECT_THAT(std::string(ParseLayerProfile(deep, "p.json").status().message()),
              StartsWith("p.json: nested deeper"));
}

TEST(ScheduleJsonTest, ReadsAFourTupleAndNamesWhatIsWrong) {
  const auto schedule = ParseSchedule(
      R"({"u_fwd": 2, "pack_fwd": [[0, 3]], "u_bwd": 1, "pack_bwd": [[0, 3], [4, 5]], "x": 1})",
      "s");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(*schedule, (Schedule{2, 1, {{0, 3}}, {{0, 3}, {4, 5}}}));
  EXPECT_EQ(ParseSchedule(R"({"u_fwd": 2})", "s").status().message(), "s: pack_fwd is missing");
  EXPECT_THAT(
      std::string(ParseSchedule(R"({"u_fwd": 2, "pack_fwd": [[0]]})", "s").status().message()),
      HasSubstr("pack_fwd[0]"));
  EXPECT_THAT(std::string(ParseSchedule(R"({"u_fwd": 1e999})", "s").status().message()),
              StartsWith("s: u_fwd"));
}

}  // namespace
}  // namespace harmony::published
