#include "common/job/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/job/job_texts.h"

namespace harmony::job {
namespace {

using ::testing::ElementsAre;

TEST(JobFileTest, DefaultsAndPaths) {
  const auto job = Parse("");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model_name_or_path, "gpt2-mini");  // a preset, not a path
  EXPECT_EQ(job->data_path, "/jobs/text.txt");
  EXPECT_EQ(job->output_dir, "/jobs/out");
  EXPECT_EQ(job->micro_batch_size, 0);
  EXPECT_EQ(job->learning_rate, 3e-4);
  EXPECT_EQ(job->resume_from_checkpoint, "auto");
}

TEST(JobFileTest, RelativePathsOfAJobFromElsewhereAreRefused) {
  JobOverrides elsewhere = {{"data.path=/d/text.txt", "output_dir=/d/out"}, "/here", true};
  EXPECT_TRUE(Parse("", elsewhere).ok());
  elsewhere.settings[0] = "data.path=text.txt";
  ExpectError(Parse("", elsewhere).status(), absl::StatusCode::kInvalidArgument,
              {"--set", "data.path", "relative path", "coordinator's machine"});
  elsewhere.settings.resize(0);
  ExpectError(Parse("", elsewhere).status(), absl::StatusCode::kInvalidArgument,
              {"job.yaml", "relative path"});
}

TEST(JobFileTest, ReadsEveryKey) {
  const auto job = Parse(R"(
init: pretrained
sequence_length: 64
global_batch_size: 12
micro_batch_size: 3
max_steps: 0
shuffle: true
optim: sgd
learning_rate: 1e-3
lr_scheduler_type: cosine_with_min_lr
warmup_steps: 0.1
min_lr_rate: 0.2
weight_decay: 0
adam_beta1: 0.8
adam_beta2: 0.99
adam_epsilon: 1e-6
layer_groups: [2, 3]
update: deferred
stash: host
compute_threads: 2
dropout: 0
max_grad_norm: 1.5
bf16: false
seed: 18446744073709551615
mode: harmony-pp
save_steps: 10
save_total_limit: 3
resume_from_checkpoint: ck/1
logging_steps: 5
)");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->init, InitMode::kPretrained);
  EXPECT_EQ(job->max_steps, 0);
  EXPECT_EQ(job->optim, OptimizerKind::kSgd);
  EXPECT_EQ(job->lr_scheduler_type, ScheduleKind::kCosineWithMinLr);
  EXPECT_EQ(job->layer_groups, (std::vector<int>{2, 3}));
  EXPECT_EQ(job->seed, ~uint64_t{0});
  EXPECT_EQ(job->resume_from_checkpoint, "/jobs/ck/1");
  EXPECT_EQ(job->warmup_steps, 0.1);

  const auto again = JobSpecFromJson(JobSpecToJson(*job), "database");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(JobSpecToJson(*again), JobSpecToJson(*job));
  EXPECT_EQ(again->layer_groups, job->layer_groups);
  EXPECT_EQ(again->seed, job->seed);
  EXPECT_EQ(again->learning_rate, job->learning_rate);
  EXPECT_EQ(again->output_dir, job->output_dir);
}

TEST(JobFileTest, SaysWhetherAKeyIsGiven) {
  const auto gives = [](absl::string_view text, const std::vector<std::string>& set,
                        const std::string& key) {
    return ReadJobFile(text, "job.yaml", {set, ""})->given.contains(key);
  };
  EXPECT_TRUE(gives(absl::StrCat(kMinimal, "dropout: 0\n"), {}, "dropout"));
  EXPECT_FALSE(gives(kMinimal, {}, "dropout"));
  EXPECT_TRUE(gives(kMinimal, {"dropout=0"}, "dropout"));
  EXPECT_TRUE(gives(kMinimal, {}, "data.path"));
}

TEST(JobFileTest, UnknownKeysGetTheNearestKnownOne) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(Parse("learning_rte: 1").status(), kInvalid,
              {"/jobs/job.yaml:4", "'learning_rte'", "did you mean 'learning_rate'"});
  ExpectError(ParseJobFile("data: {pth: x}", "j.yaml").status(), kInvalid,
              {"j.yaml:1", "did you mean 'data.path'"});
  ExpectError(Parse("entirely_different_thing: 1").status(), kInvalid, {"known keys: adam_beta1"});
  ExpectError(Parse("gradient_accumulation_steps: 4").status(), kInvalid, {"global_batch_size"});
}

TEST(JobFileTest, KeysOfOtherTrainersAreTakenWhereTheyMeanTheSame) {
  const auto job = Parse(
      "lr: 1e-4\nmax_seq_length: 64\ngradient_clipping: 0.5\nper_device_train_batch_size: 2\n"
      "gradient_accumulation_steps: 3\nresume_from_checkpoint: true\noptimizer: sgd");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->learning_rate, 1e-4);
  EXPECT_EQ(job->sequence_length, 64);
  EXPECT_EQ(job->max_grad_norm, 0.5);
  EXPECT_EQ(job->micro_batch_size, 2);
  EXPECT_EQ(job->global_batch_size, 6);
  EXPECT_EQ(job->resume_from_checkpoint, "auto");
  EXPECT_EQ(job->optim, OptimizerKind::kSgd);
  EXPECT_EQ(Parse("optim: adamw_torch")->optim, OptimizerKind::kAdamW);
  for (const char* word : {"auto", "True", "TRUE"}) {
    const auto newest = Parse(absl::StrCat("resume_from_checkpoint: ", word));
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_EQ(newest->resume_from_checkpoint, "auto") << word;  // not a path
  }
  const auto none = Parse("resume_from_checkpoint: false");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->resume_from_checkpoint, "none");
  const auto set = ParseJobFile(
      "model_name_or_path: gpt2-mini\ntrain_file: d\ndata: {format: text-bytes}\n"
      "output_dir: o\nlr: 1",
      "/jobs/job.yaml", {{"lr=2", "seq_len=8"}, ""});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->data_path, "/jobs/d");
  EXPECT_EQ(set->learning_rate, 2);
  EXPECT_EQ(set->sequence_length, 8);
}

TEST(JobFileTest, KeysOfOtherTrainersThatMeanSomethingElseAreExplained) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(Parse("momentum: 0.9").status(), kInvalid, {"momentum is sgd's"});
  ExpectError(Parse("optim: sgd\nnesterov: true").status(), kInvalid,
              {"nesterov needs a momentum"});
  ExpectError(Parse("lr: 1\nlearning_rate: 2").status(), kInvalid,
              {"job.yaml:5", "learning_rate is given twice"});
  ExpectError(Parse("per_device_train_batch_size: 4").status(), kInvalid,
              {"job.yaml:4", "need each other"});
  ExpectError(Parse("per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\n"
                    "global_batch_size: 8")
                  .status(),
              kInvalid, {"job.yaml:4", "global_batch_size", "give one of them"});
  ExpectError(Parse("per_device_train_batch_size: x\ngradient_accumulation_steps: 2").status(),
              kInvalid,
              {"job.yaml:4", "per_device_train_batch_size is 'x'", "a whole number from 1"});
  ExpectError(Parse("gradient_checkpointing: true").status(), kInvalid,
              {"job.yaml:4", "recomputed without asking"});
  ExpectError(Parse("model: gpt2-mini").status(), kInvalid, {"use model_name_or_path"});
  ExpectError(Parse("overwrite_output_dir: true").status(), kInvalid, {"--overwrite"});
  // What is refused is not offered.
  const absl::Status mode = Parse("mode: fast").status();
  ExpectError(mode, kInvalid, {"one of: auto, harmony-pp, harmony-dp"});
  EXPECT_EQ(mode.message().find("dp-swap"), std::string::npos);
}

TEST(JobFileTest, LaterFeaturesAreRefusedByName) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  for (const char* line : {"plan: x", "pipeline: {}", "eval_data: x", "dropout: config",
                           "mode: dp-swap", "mode: pp-swap", "mode: zero-offload"}) {
    const std::string key(absl::string_view(line).substr(0, absl::string_view(line).find(':')));
    ExpectError(Parse(line).status(), kUnimplemented, {"/jobs/job.yaml:4", key, "not there yet"});
  }
}

TEST(JobFileTest, ReplicasAreWholeMicrobatches) {
  const auto job = Parse("mode: harmony-dp\nglobal_batch_size: 24\nvirtual_replicas: 8");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->mode, "harmony-dp");
  EXPECT_EQ(job->virtual_replicas, 8);
  const auto automatic = Parse("global_batch_size: 24\nvirtual_replicas: auto");
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->virtual_replicas, 0);
  EXPECT_EQ(automatic->AutoReplicas(), 8);
  EXPECT_EQ(automatic->AutoReplicas(4), 2);
  EXPECT_EQ(automatic->AutoReplicas(8), 1);
  EXPECT_EQ(Parse("global_batch_size: 64")->AutoReplicas(), 16);
  // They fix the result; the mode does not.
  EXPECT_EQ(DifferingKeys(ResultKeysText(*automatic), ResultKeysText(*job)),
            std::vector<std::string>{"virtual_replicas (auto -> 8)"});
}

TEST(JobFileTest, WrongTypesAndRangesNameKeyAndLine) {
  for (const char* line : {"learning_rate: fast",
                           "learning_rate: \"1\"",
                           "learning_rate: .nan",
                           "learning_rate: -1",
                           "learning_rate: 1e999",
                           "learning_rate: [1]",
                           "max_steps: 1.5",
                           "max_steps: -1",
                           "max_steps: 99999999999999999999",
                           "global_batch_size: 0",
                           "sequence_length: {a: 1}",
                           "shuffle: 1",
                           "shuffle: maybe",
                           "shuffle: \"true\"",
                           "optim: adam",
                           "init: zero",
                           "micro_batch_size: some",
                           "micro_batch_size: 0",
                           "virtual_replicas: 0",
                           "virtual_replicas: 1.5",
                           "virtual_replicas: 3",
                           "virtual_replicas: many",
                           "layer_groups: 3",
                           "layer_groups: []",
                           "layer_groups: [1, 0]",
                           "layer_groups: [1, [2]]",
                           "adam_beta1: 1",
                           "adam_epsilon: 0",
                           "min_lr_rate: 1.1",
                           "warmup_steps: 1.5",
                           "compute_threads: 0",
                           "seed: -1",
                           "logging_steps: 0",
                           "save_total_limit: 0",
                           "dropout: 0.1",
                           "mode: fast",
                           "bf16: 16",
                           "max_grad_norm: inf"}) {
    const std::string key(absl::string_view(line).substr(0, absl::string_view(line).find(':')));
    ExpectError(Parse(line).status(), absl::StatusCode::kInvalidArgument,
                {"/jobs/job.yaml:4", key, "must be"});
  }
}

TEST(JobFileTest, TextThatIsNoJobFileIsRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(ParseJobFile("", "j.yaml").status(), kInvalid, {"j.yaml"});
  ExpectError(ParseJobFile("- a\n- b", "j.yaml").status(), kInvalid, {"j.yaml"});
  ExpectError(ParseJobFile("a: [1", "j.yaml").status(), kInvalid, {"j.yaml:1", "YAML"});
  ExpectError(ParseJobFile("a: 1\n---\nb: 2", "j.yaml").status(), kInvalid, {"one document"});
  // yaml-cpp's own LoadAll never returns from this one.
  ExpectError(ParseJobFile(",44nul4\xf7\xf7\xf7"
                           "4 8:",
                           "j.yaml")
                  .status(),
              kInvalid, {"j.yaml"});
  ExpectError(ParseJobFile(absl::string_view("a: \0", 4), "j.yaml").status(), kInvalid,
              {"control character"});
  ExpectError(Parse("seed:").status(), kInvalid, {"seed has no value"});
  ExpectError(Parse("seed: 1\nseed: 2").status(), kInvalid, {"job.yaml:5", "seed is given twice"});
  ExpectError(Parse("data: {path: x}").status(), kInvalid, {"data.path is given twice"});
  ExpectError(Parse("? [a]\n: 1").status(), kInvalid, {"a key must be"});
  ExpectError(ParseJobFile("data: 3", "j.yaml").status(), kInvalid, {"data must be a map"});
  ExpectError(ParseJobFile("output_dir: x\nmodel_name_or_path: gpt2-mini", "j.yaml").status(),
              kInvalid, {"'data' is missing"});
  ExpectError(ParseJobFile("output_dir: x\ndata: {path: x}", "j.yaml").status(), kInvalid,
              {"'data.format' is missing"});
}

TEST(JobFileTest, TextsThatATerminalWouldObeyAreRefusedAndShownHarmless) {
  const absl::Status status = Parse("resume_from_checkpoint: \"a\\e[2J\"").status();
  ExpectError(status, absl::StatusCode::kInvalidArgument,
              {"resume_from_checkpoint is '/jobs/a\\033[2J'", "without control characters"});
}

TEST(JobFileTest, QuotedAutoIsAuto) {
  const auto job = Parse("layer_groups: \"auto\"\nmicro_batch_size: \"auto\"");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->layer_groups.empty());
  EXPECT_EQ(job->micro_batch_size, 0);
}

TEST(JobFileTest, MicrobatchMustDivideTheBatch) {
  ExpectError(Parse("global_batch_size: 32\nmicro_batch_size: 5").status(),
              absl::StatusCode::kInvalidArgument, {"micro_batch_size 5", "32", "4 and 8"});
  ExpectError(Parse("global_batch_size: 24\nmicro_batch_size: 2\nvirtual_replicas: 8").status(),
              absl::StatusCode::kInvalidArgument,
              {"virtual_replicas 8", "12 microbatches", "24", "up to 4"});
  ExpectError(Parse("global_batch_size: 6\nvirtual_replicas: 4").status(),
              absl::StatusCode::kInvalidArgument, {"virtual_replicas 4", "global_batch_size 6"});
  ExpectError(
      Parse("global_batch_size: 32770\nmicro_batch_size: 1").status(),
      absl::StatusCode::kInvalidArgument,
      {"global_batch_size 32770", "micro_batch_size 1 ", "16384", "raise micro_batch_size"});
  EXPECT_TRUE(Parse("global_batch_size: 32768\nmicro_batch_size: 2").ok());
  ExpectError(Parse("global_batch_size: 1000000\nvirtual_replicas: 32768").status(),
              absl::StatusCode::kInvalidArgument, {"virtual_replicas 32768", "16384", "lower it"});
  ExpectError(Parse("global_batch_size: 8\nmicro_batch_size: 12").status(),
              absl::StatusCode::kInvalidArgument, {"nearest that do: 8"});
  ExpectError(Parse("update: eager\nmax_grad_norm: 1").status(), absl::StatusCode::kInvalidArgument,
              {"update", "max_grad_norm"});
}

TEST(JobFileTest, RatesAfterStepsAreAMap) {
  const auto job = Parse("learning_rate_after: {2000: 1e-4, 300: 0}", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->learning_rate_after, (std::map<int64_t, double>{{300, 0}, {2000, 1e-4}}));
  const auto again = JobSpecFromJson(JobSpecToJson(*job), "database");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->learning_rate_after, job->learning_rate_after);
  EXPECT_EQ(ResultKeysText(*again), ResultKeysText(*job));
  EXPECT_EQ(Parse("", {{"learning_rate_after={5: 1}"}, ""})->learning_rate_after.at(5), 1);
  for (const char* wrong : {"1e-4", "{x: 1e-4}", "{-1: 1e-4}", "{5: fast}", "{5: -1}"}) {
    ExpectError(Parse(absl::StrCat("learning_rate_after: ", wrong), {}).status(),
                absl::StatusCode::kInvalidArgument, {"learning_rate_after", "a map of steps"});
  }
  for (const char* twice : {"{7: 1e-4, 7: 1e-5}", "{7: 1e-4, 007: 1e-4}"}) {
    ExpectError(Parse(absl::StrCat("learning_rate_after: ", twice), {}).status(),
                absl::StatusCode::kInvalidArgument, {"learning_rate_after gives step 7 twice"});
  }
}

TEST(JobFileTest, PassesOverTheDataAreWholeSteps) {
  EXPECT_EQ(*StepsOfEpochs(1, 64, 8), 8);
  EXPECT_EQ(*StepsOfEpochs(1.5, 100, 8), 19);
  EXPECT_EQ(*StepsOfEpochs(0.1, 100, 10), 1);  // though a tenth is a little more than 0.1
  ExpectError(StepsOfEpochs(1e12, 100, 8).status(), absl::StatusCode::kInvalidArgument, {"epochs"});
}

TEST(JobFileTest, EpochsStandInThePlaceOfMaxSteps) {
  const auto epochs = [](const std::string& text, const JobOverrides& overrides) {
    const auto file = ReadJobFile(absl::StrCat(kMinimal, text), "/jobs/job.yaml", overrides);
    EXPECT_TRUE(file.ok()) << file.status();
    return file->epochs;
  };
  EXPECT_EQ(epochs("", {}), 0);
  EXPECT_EQ(epochs("epochs: 3", {}), 3);
  EXPECT_EQ(epochs("num_train_epochs: 0.5", {}), 0.5);
  EXPECT_EQ(epochs("epochs: 3", {{"num_epochs=2"}, ""}), 2);
  EXPECT_EQ(epochs("max_steps: 3", {{"epochs=2"}, ""}), 2);
  EXPECT_EQ(epochs("epochs: 3", {{"max_steps=7"}, ""}), 0);
  EXPECT_EQ(Parse("epochs: 3", {{"max_steps=7"}, ""})->max_steps, 7);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(Parse("max_steps: 3\nepochs: 2").status(), kInvalid, {"job.yaml:5", "give one"});
  ExpectError(Parse("", {{"epochs=1", "max_steps=7"}, ""}).status(), kInvalid, {"give one"});
  for (const char* wrong : {"0", "-1", "x", "nan", "inf", "'3'", "[1]"}) {
    ExpectError(Parse(absl::StrCat("epochs: ", wrong)).status(), kInvalid,
                {"job.yaml:4", "a number above 0"});
  }
}

TEST(JobFileTest, ThatDataWereAppendedIsSaidOfOneSubmission) {
  constexpr absl::string_view kRest = "model_name_or_path: gpt2-mini\noutput_dir: out\n";
  const auto says = [&](const std::string& data, const JobOverrides& overrides) {
    const std::string text =
        absl::StrCat(kRest, "data: {path: t.txt, format: text-bytes", data, "}");
    const auto file = ReadJobFile(text, "/jobs/job.yaml", overrides);
    EXPECT_TRUE(file.ok()) << file.status();
    return file->appended;
  };
  EXPECT_FALSE(says("", {}));
  EXPECT_TRUE(says(", appended: true", {}));
  EXPECT_TRUE(says("", {{"data.appended=true"}, ""}));
  EXPECT_FALSE(says(", appended: true", {{"data.appended=false"}, ""}));
  ExpectError(Parse("", {{"data.appended=maybe"}, ""}).status(), absl::StatusCode::kInvalidArgument,
              {"data.appended must be true or false"});
  ExpectError(ParseJobFile(absl::StrCat(kRest, "data: {inputs: {x: x.npy}, appended: true}"),
                           "/jobs/job.yaml")
                  .status(),
              absl::StatusCode::kInvalidArgument, {"exclude each other"});
}

TEST(JobFileTest, OverridesReplaceWhatTheFileSays) {
  const auto job = Parse("max_steps: 5\nlayer_groups: auto",
                         {{"max_steps=7", "data.path=a=b.txt", "layer_groups=[1, 2]",
                           "model_name_or_path=././models/x", "output_dir=/abs"},
                          "/home/me"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->max_steps, 7);
  EXPECT_EQ(job->data_path, "/home/me/a=b.txt");
  EXPECT_EQ(job->model_name_or_path, "/home/me/models/x");
  EXPECT_EQ(job->output_dir, "/abs");
  EXPECT_EQ(job->layer_groups, (std::vector<int>{1, 2}));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(Parse("", {{"max_steps"}, ""}).status(), kInvalid, {"--set max_steps", "key=value"});
  ExpectError(Parse("", {{"max_step=1"}, ""}).status(), kInvalid, {"did you mean 'max_steps'"});
  ExpectError(Parse("", {{"max_steps="}, ""}).status(), kInvalid, {"no value"});
  ExpectError(Parse("", {{"max_steps=x"}, ""}).status(), kInvalid,
              {"--set max_steps=x", "must be"});
  ExpectError(Parse("", {{"layer_groups=[1"}, ""}).status(), kInvalid, {"YAML"});
}

TEST(JobFileTest, ArraysOfInputsAreNamedAndSeenFromTheFile) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto parse = [](absl::string_view data, const std::vector<std::string>& settings = {}) {
    JobOverrides overrides;
    overrides.settings = settings;
    overrides.folder = "/here";
    return ParseJobFile(absl::StrCat("model_name_or_path: m\noutput_dir: out\n", data),
                        "/jobs/job.yaml", overrides);
  };
  const auto job = parse("data: {inputs: {x: a/x.npy, labels: /b/y.npy}}");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::map<std::string, std::string> expected = {{"x", "/jobs/a/x.npy"},
                                                       {"labels", "/b/y.npy"}};
  EXPECT_EQ(job->data_inputs, expected);
  // What is stored and read again is the same job.
  const auto again = JobSpecFromJson(JobSpecToJson(*job), "stored");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data_inputs, expected);
  EXPECT_EQ(ResultKeysText(*again), ResultKeysText(*job));

  const auto set = parse("data: {inputs: {x: x.npy}}", {"data.inputs={x: z.npy}"});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->data_inputs.at("x"), "/here/z.npy");

  ExpectError(parse("data: {inputs: x.npy}").status(), kInvalid, {"a map of the model's inputs"});
  ExpectError(parse("data: {inputs: [x.npy]}").status(), kInvalid, {"a map of the model's inputs"});
  ExpectError(parse("data: {inputs: {x: x.npy}, path: t, format: text-bytes}").status(), kInvalid,
              {"data.inputs and data.path exclude each other"});
  ExpectError(parse("").status(), kInvalid, {"'data' is missing", "{inputs: {NAME: FILE.npy"});

  const std::string tokens = "data: {path: t, format: tokens-u16, ";
  const auto masked = parse(absl::StrCat(tokens, "mask_probability: 0.15, mask_token: 103}"));
  ASSERT_TRUE(masked.ok()) << masked.status();
  EXPECT_EQ(masked->mask_probability, 0.15);
  EXPECT_EQ(JobSpecFromJson(JobSpecToJson(*masked), "stored")->mask_token, 103);
  EXPECT_NE(ResultKeysText(*masked), ResultKeysText(*parse(absl::StrCat(tokens, "}"))));
  ExpectError(parse(absl::StrCat(tokens, "mask_probability: 0.15}")).status(), kInvalid,
              {"data.mask_token", "where tokens are masked"});
  ExpectError(parse(absl::StrCat(tokens, "mask_probability: 1, mask_token: 3}")).status(), kInvalid,
              {"data.mask_probability", "from 0 to below 1"});
  ExpectError(parse("data: {inputs: {x: x.npy}, mask_token: 3, mask_probability: 0.1}").status(),
              kInvalid, {"data.inputs and data.path exclude each other"});
}

}  // namespace
}  // namespace harmony::job
