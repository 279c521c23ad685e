#include "common/job/parameter_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_file.h"
#include "tests/unit/common/job/job_texts.h"

namespace harmony::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectError(const absl::Status& status, std::initializer_list<absl::string_view> parts) {
  job::ExpectError(status, absl::StatusCode::kInvalidArgument, parts);
}

constexpr absl::string_view kThree = R"(
parameter_rules:
  - names: ["*.bias", "*norm*"]
    weight_decay: 0
  - dimensions: [0, 1]
    weight_decay: 0.5
  - names: encoder.*
    dimensions: 2
    learning_rate_factor: 0.1
    weight_decay: 1e-2
)";

const std::vector<ParameterRule> kThreeRules = {
    {.names = {"*.bias", "*norm*"}, .weight_decay = 0},
    {.dimensions = {0, 1}, .weight_decay = 0.5},
    {.names = {"encoder.*"}, .dimensions = {2}, .weight_decay = 0.01, .learning_rate_factor = 0.1}};

TEST(ParameterRulesKeyTest, RulesAreReadAndStored) {
  const auto job = Parse(kThree);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->parameter_rules, kThreeRules);
  const auto again = JobSpecFromJson(JobSpecToJson(*job), "stored");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->parameter_rules, kThreeRules);
  EXPECT_EQ(ResultKeysText(*again), ResultKeysText(*job));
  EXPECT_EQ(JobSpecToJson(*again), JobSpecToJson(*job));

  const auto set =
      Parse(kThree, {{R"(parameter_rules=[{names: "*", learning_rate_factor: 0}])"}, ""});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->parameter_rules,
            std::vector<ParameterRule>({{.names = {"*"}, .learning_rate_factor = 0}}));
  const auto none = Parse(kThree, {{"parameter_rules=[]"}, ""});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->parameter_rules.empty());
}

TEST(ParameterRulesKeyTest, TheyArePartOfWhatFixesTheResult) {
  const JobSpec plain = *Parse("");
  const JobSpec ruled = *Parse(R"(parameter_rules: [{names: "*", weight_decay: 0.25}])");
  EXPECT_THAT(DifferingKeys(ResultKeysText(plain), ResultKeysText(ruled)),
              ElementsAre(R"(parameter_rules ([] -> [{"names":["*"],"weight_decay":0.25}]))"));
  // Texts of before the key was known are those of runs without rules.
  std::string before = ResultKeysText(plain);
  const std::string line = "parameter_rules: []\n";
  ASSERT_THAT(before, HasSubstr(line));
  before.erase(before.find(line), line.size());
  EXPECT_THAT(DifferingKeys(before, ResultKeysText(plain)), ElementsAre());
}

TEST(ParameterRulesKeyTest, BadOnesAreNamedByLineAndNumber) {
  ExpectError(Parse("parameter_rules: 3").status(),
              {"job.yaml:4", "parameter_rules is '3'", "a list of rules"});
  ExpectError(Parse("parameter_rules: {names: x, weight_decay: 0}").status(), {"a list of rules"});
  ExpectError(Parse("parameter_rules: [x]").status(), {"a list of rules"});
  ExpectError(Parse("parameter_rules: [{names: x, weight_decay: 0}, 3]").status(),
              {"a list of rules"});
  ExpectError(Parse("parameter_rules:").status(), {"parameter_rules has no value"});
  const auto second = [](absl::string_view rule) {
    return Parse(absl::StrCat("parameter_rules:\n  - {names: a, weight_decay: 1}\n  - ", rule))
        .status();
  };
  ExpectError(second("{weight_decay: 0}"),
              {"job.yaml:6", "rule 2 says of no parameters", "give it names, dimensions or both"});
  ExpectError(second("{names: x}"), {"job.yaml:6", "rule 2 changes nothing", "weight_decay"});
  ExpectError(second("{}"), {"job.yaml:6", "rule 2 says of no parameters"});
  for (const char* number : {"-1", "x", "\"0\"", ".nan", "1e99", "[0]", ""}) {
    ExpectError(second(absl::StrCat("{names: x, weight_decay: ", number, "}")),
                {"job.yaml:6", "rule 2: weight_decay is", "must be a number of at least 0"});
    ExpectError(second(absl::StrCat("{names: x, learning_rate_factor: ", number, "}")),
                {"rule 2: learning_rate_factor is", "must be a number of at least 0"});
  }
  for (const char* names : {"[]", "{a: 1}", "\"\"", "[a, \"\"]", "[[a]]", ""}) {
    ExpectError(second(absl::StrCat("{weight_decay: 0, names: ", names, "}")),
                {"rule 2: names is", "a text like \"*.bias\", or a list of such texts"});
  }
  for (const char* dimensions : {"[]", "-1", "[1, -1]", "1.5", "65", "two", ""}) {
    ExpectError(second(absl::StrCat("{weight_decay: 0, dimensions: ", dimensions, "}")),
                {"rule 2: dimensions is", "a number of dimensions from 0"});
  }
  ExpectError(second("{name: x, weight_decay: 0}"),
              {"job.yaml:6", "rule 2: unknown key 'name'; did you mean 'names'?"});
  ExpectError(second("{names: x, lr: 0}"), {"rule 2: unknown key 'lr'", "learning_rate_factor"});
  ExpectError(second("{names: x, weight_decay: 0, weight_decay: 0}"),
              {"rule 2: weight_decay is given twice"});
}

// Two blocks: weights and biases of two layers, a table with two names, what is not trained.
model::ModelSpec MakeModel() {
  model::ModelSpec model;
  const auto add = [](model::ParamBlock& block, const char* name, std::vector<int64_t> shape) {
    model::TensorSpec tensor;
    tensor.name = name;
    tensor.weight_decay = shape.size() >= 2;
    tensor.shape = std::move(shape);
    model::AddTensor(block, std::move(tensor));
  };
  model::ParamBlock first, second;
  add(first, "encoder.embed.weight", {8, 4});
  first.tensors[0].aliases = {"head.weight"};
  add(first, "encoder.0.weight", {4, 4});
  add(first, "encoder.0.bias", {4});
  add(second, "encoder.1.weight", {4, 4});
  add(second, "encoder.1.norm.weight", {4});
  add(second, "scale", {});
  add(second, "running_mean", {4});
  second.tensors.back().role = model::TensorRole::kStatistic;
  model.blocks = {first, second};
  return model;
}

// What a parameter is trained with, as text: "own decay or the model's flag, factor".
std::string Of(const model::ModelSpec& model, absl::string_view name) {
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (tensor.name != name) continue;
      return absl::StrCat(tensor.own_weight_decay ? absl::StrCat(*tensor.own_weight_decay)
                          : tensor.weight_decay   ? "decays"
                                                  : "does not",
                          ", ", tensor.learning_rate_factor);
    }
  }
  return "is not there";
}

TEST(ParameterRulesTest, TheFirstThatFitsDecides) {
  model::ModelSpec model = MakeModel();
  JobSpec job;
  job.parameter_rules = {{.names = {"*.bias", "*norm*"}, .weight_decay = 0},
                         {.dimensions = {0, 1}, .learning_rate_factor = 2},
                         {.names = {"head.*"}, .learning_rate_factor = 0.5},
                         {.names = {"encoder.[0-9].*"}, .dimensions = {2}, .weight_decay = 0.25}};
  ASSERT_TRUE(ApplyParameterRules(job, &model).ok()) << ApplyParameterRules(job, &model);
  EXPECT_EQ(Of(model, "encoder.0.bias"), "0, 1");
  EXPECT_EQ(Of(model, "encoder.1.norm.weight"), "0, 1");
  EXPECT_EQ(Of(model, "scale"), "does not, 2");
  EXPECT_EQ(Of(model, "encoder.embed.weight"), "decays, 0.5");  // by its other name
  EXPECT_EQ(Of(model, "encoder.0.weight"), "0.25, 1");
  EXPECT_EQ(Of(model, "encoder.1.weight"), "0.25, 1");
  EXPECT_EQ(Of(model, "running_mean"), "does not, 1");
}

TEST(ParameterRulesTest, WhatNoneFitsIsAsTheModelSays) {
  model::ModelSpec model = MakeModel();
  JobSpec job;
  ASSERT_TRUE(ApplyParameterRules(job, &model).ok());
  EXPECT_EQ(Of(model, "encoder.0.weight"), "decays, 1");
  job.parameter_rules = {{.names = {"scale"}, .weight_decay = 1}};
  ASSERT_TRUE(ApplyParameterRules(job, &model).ok());
  EXPECT_EQ(Of(model, "encoder.0.weight"), "decays, 1");
  EXPECT_EQ(Of(model, "scale"), "1, 1");
}

TEST(ParameterRulesTest, ARuleThatDecidesNothingIsRefused) {
  const auto refused = [](std::vector<ParameterRule> rules,
                          std::initializer_list<absl::string_view> parts) {
    JobSpec job;
    job.parameter_rules = std::move(rules);
    model::ModelSpec model = MakeModel();
    ExpectError(ApplyParameterRules(job, &model), parts);
  };
  const ParameterRule all{.names = {"*"}, .weight_decay = 0};
  refused({all, {.names = {"*.bias"}, .weight_decay = 1}},
          {"parameter_rules: rule 2 decides no parameter of the model", "encoder.0.bias by rule 1",
           "put it before them, or remove it"});
  refused({{.names = {"encoder.*.biass"}, .weight_decay = 1}},
          {"rule 1", "none has a name like 'encoder.*.biass'", "the nearest", "encoder.0.bias"});
  refused({{.names = {"hed.weight"}, .weight_decay = 1}}, {"has: head.weight"});
  refused({{.names = {"encoder.*"}, .dimensions = {3, 4}, .weight_decay = 1}},
          {"those with such a name have 1 or 2 dimensions, not 3 or 4"});
  refused({{.dimensions = {3}, .weight_decay = 1}},
          {"the parameters have 0 or 1 or 2 dimensions, not 3"});
  refused({{.names = {"running_*"}, .weight_decay = 1}},
          {"running_mean is not trained; remove the rule"});
}

TEST(ParameterRulesTest, AModelIsDescribedWithTheJobsRules) {
  const auto config = model::ParseArchitecture(*model::PresetConfigJson("gpt2-mini"), "gpt2-mini");
  ASSERT_TRUE(config.ok()) << config.status();
  JobSpec job = *Parse(R"(parameter_rules: [{names: "*ln_?.weight", weight_decay: 0.5}])");
  job.sequence_length = 16;
  const auto model = ModelOf(*config, job);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(Of(*model, "transformer.h.0.ln_1.weight"), "0.5, 1");
  EXPECT_EQ(Of(*model, "transformer.h.0.ln_1.bias"), "does not, 1");
  job.parameter_rules[0].names = {"*ln_?.wait"};
  ExpectError(ModelOf(*config, job).status(), {"rule 1", "ln_1.weight"});
}

}  // namespace
}  // namespace harmony::job
