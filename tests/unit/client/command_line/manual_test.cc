#include "client/command_line/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

namespace harmony::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ManualTest, SaysWhatIsDeclaredAndNotWhatIsHidden) {
  CLI::App app("Trains.", "harmony");
  std::string text;
  int lines = 20;
  CLI::App* logs = app.add_subcommand("logs", "Last lines of `harmony up`");
  logs->add_option("job", text, "Which")->type_name("JOB");
  logs->add_option("-n,--lines", lines, "Lines of each")->capture_default_str();
  logs->add_option("--dtype", text, ".5 of 'it'")->required()->check(CLI::IsMember({"a", "b"}));
  logs->add_flag("--inner")->group("");
  app.add_subcommand("internal", "Not for people")->group("");

  const std::string page = Manual(app, "harmony 1.2");
  EXPECT_THAT(page, HasSubstr(".TH HARMONY 1 \"\" \"harmony 1.2\""));
  EXPECT_THAT(page, HasSubstr(".SS \\fBharmony logs\\fR [\\fIJOB\\fR]\n"
                              "Last lines of \\fBharmony up\\fR.\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB\\-n\\fR, \\fB\\-\\-lines\\fR \\fIINT\\fR\n"
                              "Lines of each (default: 20).\n"));
  EXPECT_THAT(page, HasSubstr("\\fIa|b\\fR\n\\&.5 of \\(aqit\\(aq; must be given.\n"));
  EXPECT_THAT(page, Not(HasSubstr("inner")));
  EXPECT_THAT(page, Not(HasSubstr("internal")));
  EXPECT_THAT(page, HasSubstr("\\fBmode\\fR (auto, harmony\\-pp, harmony\\-dp)"));
}

}  // namespace
}  // namespace harmony::client
