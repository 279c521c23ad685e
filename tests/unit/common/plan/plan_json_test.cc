#include "common/plan/plan_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/random_case.h"

namespace harmony::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(PlanJsonTest, RoundTrip) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CounterRandom random(seed, 3);
    const model::ModelSpec model = sim::RandomModel(random, seed);
    const Plan plan = sim::RandomPlan(random, model);
    const std::string text = PlanFileText(plan);
    const absl::StatusOr<Plan> read = ParsePlanFile(text, "plan.json");
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
    EXPECT_EQ(PlanFileText(*read), text);
    EXPECT_EQ(read->replicas, plan.replicas);
    EXPECT_EQ(read->update, plan.update);
    EXPECT_EQ(read->gradient_dtype, plan.gradient_dtype);
    EXPECT_EQ(read->stream_slots, plan.stream_slots);
    EXPECT_EQ(read->microbatches_per_forward_task, plan.microbatches_per_forward_task);
    ASSERT_EQ(read->backward_groups.size(), plan.backward_groups.size());
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      EXPECT_EQ(read->backward_groups[g].layers, plan.backward_groups[g].layers);
      EXPECT_EQ(read->backward_groups[g].devices, plan.backward_groups[g].devices);
      EXPECT_EQ(read->backward_groups[g].keep_weights, plan.backward_groups[g].keep_weights);
      EXPECT_EQ(read->backward_groups[g].keep_stash, plan.backward_groups[g].keep_stash);
      EXPECT_EQ(read->backward_groups[g].keep_activations,
                plan.backward_groups[g].keep_activations);
    }
    // As a part of all that is said of a plan.
    const absl::StatusOr<Plan> part =
        ParsePlanFile(absl::StrCat("{\"mode\": \"harmony-pp\", \"plan\": ", text, "}"), "p");
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(PlanFileText(*part), text);
  }
}

constexpr char kGood[] =
    R"({"schema": "harmony-plan/1", "replicas": 4, "devices": 2, "micro_batch_size": 2,
        "num_microbatches": 4, "sequence_length": 16, "update": "eager", "gradient_dtype": "fp32",
        "pass_weights": false, "forward_span": 1, "stream_slots": 2,
        "forward_groups": [{"first_layer": 0, "last_layer": 1, "devices": [0]}],
        "backward_groups": [
          {"first_layer": 0, "last_layer": 1, "devices": [0], "keep_weights": true,
           "keep_stash": false, "keep_activations": false, "gradient_parts": 4},
          {"first_layer": 2, "last_layer": 3, "devices": [1], "keep_weights": false,
           "keep_stash": false, "keep_activations": false, "gradient_parts": 4}
        ]})";

TEST(PlanJsonTest, PlansOfSeveralDevicesAGroup) {
  const std::string text = absl::StrReplaceAll(kGood, {{"[1]", "[1, 1, 1, 0]"}, {"[0]", "[0, 1]"}});
  const absl::StatusOr<Plan> plan = ParsePlanFile(text, "p.json");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->backward_groups[0].devices, (DeviceSet{0, 1}));
  EXPECT_EQ(plan->backward_groups[1].devices, (DeviceSet{1, 1, 1, 0}));
  EXPECT_STREQ(ModeOf(*plan), "mixed");
  const auto mistake = [&](const char* from, const char* to) {
    return std::string(
        ParsePlanFile(absl::StrReplaceAll(text, {{from, to}}), "p.json").status().message());
  };
  EXPECT_THAT(mistake("[1, 1, 1, 0]", "[1, 1, 0]"),
              HasSubstr("p.json: backward group of layers 2 to 3 on 3 devices, which do not divide "
                        "the 4 replicas"));
  EXPECT_THAT(mistake("[1, 1, 1, 0]", "[]"), HasSubstr("layers 2 to 3 on 0 devices"));
  EXPECT_THAT(mistake("[1, 1, 1, 0]", "[1, 2]"),
              HasSubstr("backward group of layers 2 to 3 on device 2 of 2"));
}

TEST(PlanJsonTest, NamesFileAndFieldOfWhatIsWrong) {
  const absl::StatusOr<Plan> good = ParsePlanFile(kGood, "p.json");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_STREQ(ModeOf(*good), "harmony-pp");
  struct Mistake {
    const char *from, *to, *says;
  };
  const Mistake mistakes[] = {
      {"\"devices\": 2", "\"devices\": 0", "devices"},
      {"[1]", "[2]", "backward group of layers 2 to 3 on device 2 of 2"},
      {"\"update\": \"eager\"", "\"update\": \"lazy\"", "update"},
      {"\"stream_slots\": 2", "\"stream_slots\": -1", "stream_slots"},
      {"\"stream_slots\": 2", "\"stream_slots\": 2, \"colour\": 3", "colour"},
      {"\"forward_span\": 1", "\"forward_span\": 3",
       "forward tasks of 3 microbatches at once (forward_span) do not divide the 4"},
      {"\"forward_span\": 1", "\"forward_span\": 4294967296",
       "forward_span: must be at most 16384, is 4294967296"},
      {"\"stream_slots\": 2", "\"stream_slots\": 4294967297",
       "stream_slots: must be at most 1024, is 4294967297"},
      {"\"stream_slots\": 2", "\"stream_slots\": 18446744073709551615", "stream_slots: must be"},
      {"\"devices\": 2", "\"devices\": 65", "devices: must be at most 64, is 65"},
      {"\"sequence_length\": 16", "\"sequence_length\": 4611686018427387904",
       "sequence_length: must be at most"},
      {"\"micro_batch_size\": 2", "\"micro_batch_size\": 100000000000000000",
       "micro_batch_size: must be at most"},
      {"\"last_layer\": 3", "\"last_layer\": 4294967299",
       "backward_groups[1].last_layer: must be at most"},
      {"[1]", "[4294967297]", "backward_groups[1].devices[0]: must be at most 63, is 4294967297"},
      {"\"forward_span\": 1,", "", "forward_span"},
      {"harmony-plan/1", "harmony-plan/9", "schema"},
      {"\"first_layer\": 2", "\"first_layer\": 3",
       "backward group of layers 3 to 3 where layer 2 is next"},
      {"\"sequence_length\": 16,", "", "sequence_length"},
      {"\"micro_batch_size\": 2", "\"micro_batch_size\": \"2\"", "micro_batch_size"},
      {"\"last_layer\": 1, \"devices\": [0]}", "\"last_layer\": 0, \"devices\": [0]}",
       "forward groups end"},
      {"\"keep_weights\": false", "\"keep_weights\": 1", "keep_weights"},
      {"\"replicas\": 4", "\"replicas\": 3", "3 replicas are no power of two"},
      {"\"replicas\": 4", "\"replicas\": 0", "replicas: must be at least 1"},
      {"\"gradient_parts\": 4", "\"gradient_parts\": 3", "do not divide 4 replicas"},
      {"\"keep_activations\": false", "\"keep_activations\": \"yes\"",
       "backward_groups[0].keep_activations"},
      {"\"devices\": [0]}", "\"devices\": [0], \"keep_stash\": true}", "keep_stash"},
  };
  for (const Mistake& mistake : mistakes) {
    const std::string text = absl::StrReplaceAll(kGood, {{mistake.from, mistake.to}});
    ASSERT_NE(text, kGood) << mistake.from;
    const absl::Status status = ParsePlanFile(text, "p.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << mistake.to;
    EXPECT_THAT(std::string(status.message()), StartsWith("p.json")) << mistake.to;
    EXPECT_THAT(std::string(status.message()), HasSubstr(mistake.says)) << mistake.to;
  }
  EXPECT_FALSE(ParsePlanFile("not json", "p.json").ok());
  EXPECT_FALSE(ParsePlanFile("[]", "p.json").ok());
}

}  // namespace
}  // namespace harmony::plan
