#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/document/json_fields.h"
#include "common/document/json_line.h"
#include "common/document/nearest_name.h"
#include "common/document/yaml_document.h"

namespace harmony::document {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Pair {
  int64_t a = 0;
  double b = 0;
};

absl::Status Read(absl::string_view text, Pair* pair) {
  return ReadJson(text, "file.json", [pair](const JsonField& root) {
    root.Only({"first", "second"});
    const JsonField first = root.Get("first");
    first.Only({"count"});
    pair->a = first.Get("count").Int(1, 10);
    if (root.Has("second")) pair->b = root.Get("second").Number();
  });
}

std::string Refusal(absl::string_view text) {
  Pair pair;
  const absl::Status status = Read(text, &pair);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(JsonFields, ReadsWhatIsThere) {
  Pair pair;
  ASSERT_TRUE(Read(R"({"first": {"count": 7}, "second": 0.5})", &pair).ok());
  EXPECT_EQ(pair.a, 7);
  EXPECT_EQ(pair.b, 0.5);
}

TEST(JsonFields, NamesFileFieldAndMistake) {
  EXPECT_EQ(Refusal(R"({"first": {}})"), "file.json: first.count: is missing");
  EXPECT_EQ(Refusal(R"({"first": {"count": 11}})"),
            "file.json: first.count: must be at most 10, is 11");
  EXPECT_EQ(Refusal(R"({"first": {"count": "7"}})"),
            "file.json: first.count: must be a whole number, is \"7\"");
  EXPECT_EQ(Refusal(R"({"first": {"count": 1, "cuont": 2}})"),
            "file.json: first: unknown field 'cuont'; did you mean 'count'?");
  EXPECT_EQ(Refusal(R"({"first": {"count": 1}, "x": 2})"),
            "file.json: unknown field 'x'; known fields: first, second");
  EXPECT_EQ(Refusal("[1]"), "file.json: must be an object");
  EXPECT_THAT(Refusal(R"({"first": {"count": 1}, "second": NaN})"),
              HasSubstr("second: must be a finite number, is NaN"));
  EXPECT_THAT(Refusal(R"({"first": 1, "first": 2})"), HasSubstr("'first' appears twice"));
  EXPECT_EQ(Refusal("{"), "file.json: not valid JSON: it ends too early");
  EXPECT_EQ(Refusal("{\n  \"first\": {]}"), "file.json: not valid JSON in line 2, column 13");
  EXPECT_THAT(Refusal("{\"first\": 1e999}"), HasSubstr("file.json: "));
}

TEST(NearestName, IsOneThatIsNear) {
  EXPECT_EQ(UnknownName("key", "devcies", {"devices", "host_memory"}),
            "unknown key 'devcies'; did you mean 'devices'?");
  EXPECT_EQ(UnknownName("key", "Devices", {"devices", "host_memory"}),
            "unknown key 'Devices'; did you mean 'devices'?");
  EXPECT_EQ(UnknownName("key", "memory", {"devices", "host_memory"}),
            "unknown key 'memory'; did you mean 'host_memory'?");
  EXPECT_EQ(UnknownName("key", "something", {"devices", "host_memory"}),
            "unknown key 'something'; known keys: devices, host_memory");
}

TEST(NearestName, OfAPatternIsWhatItsStarsLeaveNear) {
  const std::vector<absl::string_view> known = {"head.weight", "h.0.norm.bias", "h.0.norm.weight",
                                                "h.1.norm.bias"};
  EXPECT_THAT(NearestNames("h.*.nrm.bias", known, 2),
              ElementsAre("h.0.norm.bias", "h.1.norm.bias"));
  EXPECT_THAT(NearestNames("*.wait", known, 1), ElementsAre("head.weight"));
  EXPECT_THAT(NearestNames("", {"abc", "a"}, 5), ElementsAre("a", "abc"));
}

TEST(YamlDocument, IsOneAndWellFormed) {
  ASSERT_TRUE(ParseYaml("a: 1\n", "j.yaml").ok());
  const auto refusal = [](absl::string_view text) {
    return std::string(ParseYaml(text, "j.yaml").status().message());
  };
  EXPECT_THAT(refusal("a: 1\n---\nb: 2\n"), HasSubstr("j.yaml: holds more than one document"));
  EXPECT_THAT(refusal("a: 1\nb: \x01\n"),
              HasSubstr("j.yaml:2: not valid YAML: a control character"));
  EXPECT_THAT(refusal("a: [1\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(refusal(std::string((1 << 20) + 1, ' ')), HasSubstr("larger than 1 MiB"));
}

TEST(JsonLineTest, WhateverATextHoldsALineIsMadeOfIt) {
  EXPECT_EQ(JsonLine({{"b", 1}, {"a", "x\ny"}}), "{\"b\":1,\"a\":\"x\\ny\"}\n");
  EXPECT_EQ(JsonLine({{"path", "a\xff"}}), "{\"path\":\"a\xef\xbf\xbd\"}\n");
}

}  // namespace
}  // namespace harmony::document
