#include "client/command_line/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace harmony::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() {
    app_.fallthrough();
    app_.add_flag("--json", flag_, "JSON");
    app_.add_option("--state-dir", text_, "State")
        ->type_name("DIR")
        ->envname("COMPLETION_TEST_STATE");
    CLI::App* run = app_.add_subcommand("run", "Trains");
    run->add_option("job", text_, "Job file")->type_name("JOB.yaml");
    run->add_option("--set", texts_, "A key")->type_name("key=value")->allow_extra_args(false);
    run->add_option("-n,--lines", number_, "Lines");
    run->add_option("--hidden", number_)->group("");
    CLI::App* exported = app_.add_subcommand("export", "Writes");
    exported->add_option("run", text_)->type_name("RUN_DIR_OR_JOB");
    exported->add_option("second", text_)->type_name("PROCESS");
    exported->add_option("--dtype", text_)->check(CLI::IsMember({"fp32", "bf16"}));
    exported->add_option("--new", text_)->type_name("SOMETHING");
    app_.add_subcommand("resume", "Goes on")->add_option("job", text_)->type_name("JOB");
    app_.add_subcommand("secret", "")->group("");
  }

  Completion At(std::vector<std::string> words) {
    words.insert(words.begin(), "harmony");
    return Complete(app_, words,
                    {[this](const GivenOptions& given) {
                       given_ = given;
                       return std::vector<Candidate>{{"job-1", "running"}, {"job-12"}};
                     },
                     [](const GivenOptions&) { return std::vector<Candidate>{{"worker-0"}}; }});
  }

  std::vector<std::string> Words(std::vector<std::string> words) {
    std::vector<std::string> found;
    for (const Candidate& candidate : At(std::move(words)).words) found.push_back(candidate.word);
    return found;
  }

  CLI::App app_{"Program.", "harmony"};
  bool flag_ = false;
  int number_ = 0;
  std::string text_;
  std::vector<std::string> texts_;
  GivenOptions given_;
};

TEST_F(CompletionTest, CommandsThatAreShown) {
  EXPECT_THAT(Words({""}), ElementsAre("run", "export", "resume"));
  EXPECT_THAT(Words({"--json", "r"}), ElementsAre("run", "resume"));
  EXPECT_THAT(Words({"--state-dir", "run", "ex"}), ElementsAre("export"));
  EXPECT_THAT(Words({"no-such", ""}), IsEmpty());
  EXPECT_EQ(At({"r"}).words.front().meaning, "Trains");
}

TEST_F(CompletionTest, OptionsOfTheCommandAndOfTheProgramThatAreNotGivenYet) {
  EXPECT_THAT(Words({"run", "-"}),
              ElementsAre("--help", "--set", "--lines", "--json", "--state-dir"));
  EXPECT_THAT(Words({"run", "-n", "5", "--json", "--set", "a=b", "--"}),
              ElementsAre("--help", "--set", "--state-dir"));
  EXPECT_THAT(Words({"run", "--lines=5", "--li"}), IsEmpty());
  EXPECT_THAT(Words({"run", "--", "--li"}), IsEmpty()) << "an argument that begins with dashes";
}

TEST_F(CompletionTest, ArgumentsInTheirOrder) {
  EXPECT_EQ(At({"run", ""}).paths, Completion::Paths::kFiles);
  EXPECT_EQ(At({"run", "job.yaml", ""}).paths, Completion::Paths::kNone);
  EXPECT_EQ(At({"export", ""}).paths, Completion::Paths::kDirectories);
  EXPECT_THAT(Words({"export", "j"}), ElementsAre("job-1", "job-12"));
  EXPECT_THAT(Words({"export", "--json", "job-1", ""}), ElementsAre("worker-0"));
  EXPECT_THAT(Words({"resume", "--", "job-12"}), ElementsAre("job-12"));
}

TEST_F(CompletionTest, ValuesOfOptions) {
  EXPECT_THAT(Words({"export", "--dtype", ""}), ElementsAre("fp32", "bf16"));
  EXPECT_THAT(Words({"export", "--dtype", "b"}), ElementsAre("bf16"));
  EXPECT_THAT(Words({"export", "--dtype=b"}), ElementsAre("--dtype=bf16"));
  EXPECT_EQ(At({"run", "--state-dir="}).paths, Completion::Paths::kDirectories);
  EXPECT_THAT(Words({"run", "--lines", ""}), IsEmpty());
  EXPECT_EQ(At({"export", "--new", ""}).paths, Completion::Paths::kUnknown);
}

TEST_F(CompletionTest, KeysOfAJobFileAndTheirValues) {
  EXPECT_THAT(Words({"run", "--set", "data.a"}), ElementsAre("data.appended="));
  EXPECT_THAT(Words({"run", "--set", "mode=h"}), ElementsAre("mode=harmony-pp", "mode=harmony-dp"));
  EXPECT_THAT(Words({"run", "--set=optim="}), ElementsAre("--set=optim=adamw", "--set=optim=sgd"));
  EXPECT_THAT(Words({"run", "--set", "shuffle=t"}), ElementsAre("shuffle=true"));
  EXPECT_THAT(Words({"run", "--set", "seed="}), IsEmpty());
  EXPECT_EQ(At({"run", "--set", "data.path=x"}).paths, Completion::Paths::kFiles);
}

TEST_F(CompletionTest, SourcesAreToldWhatTheLineOrTheEnvironmentSays) {
  setenv("COMPLETION_TEST_STATE", "/by/environment", 1);
  At({"--json", "resume", ""});
  EXPECT_EQ(given_["state-dir"], "/by/environment");
  At({"resume", "--state-dir=/here", ""});
  EXPECT_EQ(given_["state-dir"], "/here");
  unsetenv("COMPLETION_TEST_STATE");
}

TEST_F(CompletionTest, TheTextForAShellHasALineForEachWord) {
  Completion completion{{{"job-1", "running,\n/out\tput"}, {"job-2"}},
                        Completion::Paths::kDirectories};
  EXPECT_EQ(CompletionText(completion), ":directories\njob-1\trunning, /out put\njob-2\t\n");
  EXPECT_EQ(CompletionText({}), ":none\n");
}

}  // namespace
}  // namespace harmony::client
