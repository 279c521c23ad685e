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
    R"({"schema": "harmony-plan/1", "devices": 2, "micro_batch_size": 2, "num_microbatches": 4,
        "sequence_length": 16, "update": "eager", "forward_span": 1, "stream_slots": 2,
        "forward_groups": [{"first_layer": 0, "last_layer": 1, "device": 0}],
        "backward_groups": [
          {"first_layer": 0, "last_layer": 1, "device": 0, "keep_weights": true, "keep_stash": false},
          {"first_layer": 2, "last_layer": 3, "device": 1, "keep_weights": false, "keep_stash": false}
        ]})";

TEST(PlanJsonTest, PlansOfSeveralDevicesAGroup) {
  const std::string text =
      absl::StrReplaceAll(kGood, {{"\"update\"", "\"replicas\": 4, \"update\""},
                                  {"\"device\": 1", "\"devices\": [1, 1, 1, 0]"},
                                  {"\"device\": 0", "\"devices\": [0, 1]"}});
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
              HasSubstr("backward_groups[1].devices: has 3 entries; they must divide replicas, 4"));
  EXPECT_THAT(mistake("[1, 1, 1, 0]", "[]"), HasSubstr("devices: has 0 entries"));
  EXPECT_THAT(mistake("[1, 1, 1, 0]", "[1, 2]"),
              HasSubstr("backward_groups[1].devices[1]: is 2; the plan is for 2 devices, from 0"));
}

// Of before groups could have several: with harmony-dp each device ran all of them.
TEST(PlanJsonTest, OlderDataParallelPlans) {
  const std::string text = absl::StrReplaceAll(
      kGood, {{"\"update\"", "\"mode\": \"harmony-dp\", \"replicas\": 2, \"update\""},
              {"\"device\": 1", "\"device\": 0"}});
  const absl::StatusOr<Plan> plan = ParsePlanFile(text, "p.json");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_STREQ(ModeOf(*plan), "harmony-dp");
  EXPECT_EQ(plan->replicas, 2);
  EXPECT_EQ(plan->backward_groups[1].devices, (DeviceSet{0, 1}));
  EXPECT_EQ(PlanFileText(*ParsePlanFile(PlanFileText(*plan), "p.json")), PlanFileText(*plan));
}

TEST(PlanJsonTest, NamesFileAndFieldOfWhatIsWrong) {
  const absl::StatusOr<Plan> good = ParsePlanFile(kGood, "p.json");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_STREQ(ModeOf(*good), "harmony-pp");  // a plan of before there was a choice
  EXPECT_EQ(good->replicas, 1);
  struct Mistake {
    const char *from, *to, *says;
  };
  const Mistake mistakes[] = {
      {"\"devices\": 2", "\"devices\": 0", "devices"},
      {"\"device\": 1", "\"device\": 2", "backward_groups[1].device"},
      {"\"update\": \"eager\"", "\"update\": \"lazy\"", "update"},
      {"\"stream_slots\": 2", "\"stream_slots\": -1", "stream_slots"},
      {"\"stream_slots\": 2", "\"stream_slots\": 2, \"colour\": 3", "colour"},
      {"\"forward_span\": 1", "\"forward_span\": 3", "forward_span: is 3"},
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
      {"\"device\": 1", "\"device\": 4294967297", "backward_groups[1].device: is 4294967297"},
      {"\"forward_span\": 1,", "", "forward_span"},
      {"harmony-plan/1", "harmony-plan/9", "schema"},
      {"\"first_layer\": 2", "\"first_layer\": 3", "backward_groups[1].first_layer"},
      {"\"sequence_length\": 16,", "", "sequence_length"},
      {"\"micro_batch_size\": 2", "\"micro_batch_size\": \"2\"", "micro_batch_size"},
      {"{\"first_layer\": 0, \"last_layer\": 1, \"device\": 0}",
       "{\"first_layer\": 0, \"last_layer\": 0, \"device\": 0}", "forward groups end"},
      {"\"keep_weights\": false", "\"keep_weights\": 1", "keep_weights"},
      {"\"update\"", "\"replicas\": 3, \"update\"", "replicas: is 3"},
      {"\"update\"", "\"replicas\": 0, \"update\"", "replicas"},
      {"\"update\"", "\"mode\": \"dp-swap\", \"update\"", "mode: is 'dp-swap'"},
      {"\"update\"", "\"mode\": \"harmony-dp\", \"update\"", "backward_groups[1].device"},
      {"\"keep_weights\": true", "\"keep_weights\": true, \"keep_activations\": \"yes\"",
       "backward_groups[0].keep_activations"},
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
