#include "client/command_line/manual.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/command_line/completion.h"
#include "client/command_line/declared.h"
#include "common/job/key_offers.h"

namespace harmony::client {
namespace {

// Characters that troff would take for its own, or print as others.
std::string Escaped(absl::string_view text) {
  const std::string safe = absl::StrReplaceAll(
      text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}, {"^", "\\(ha"}, {"~", "\\(ti"}});
  return absl::StartsWith(safe, ".") ? absl::StrCat("\\&", safe) : safe;
}

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Escaped(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Escaped(text), "\\fR"); }

// What is between backquotes is bold.
std::string Prose(absl::string_view text) {
  std::string prose;
  bool bold = false;
  for (const absl::string_view part : absl::StrSplit(text, '`')) {
    absl::StrAppend(&prose, bold && !part.empty() ? Bold(part) : Escaped(part));
    bold = !bold;
  }
  return prose;
}

// What it takes, as --help names it: "SPEC", "fp32|bf16|fp16".
std::string TakenBy(const CLI::Option& option) {
  const std::vector<std::string> words = WordsOf(option);
  return words.empty() ? option.get_type_name() : absl::StrJoin(words, "|");
}

void AppendOption(const CLI::Option& option, std::string& page) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(Bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(Bold("--" + name));
  absl::StrAppend(&page, ".TP\n", absl::StrJoin(names, ", "));
  if (TakesValue(option)) absl::StrAppend(&page, " ", Italic(TakenBy(option)));
  absl::StrAppend(&page, "\n", Prose(option.get_description()));
  if (!option.get_default_str().empty()) {
    absl::StrAppend(&page, " (default: ", Escaped(option.get_default_str()), ")");
  }
  if (option.get_items_expected_max() > 1) absl::StrAppend(&page, "; may be given several times");
  if (option.get_required()) absl::StrAppend(&page, "; must be given");
  if (!option.get_envname().empty()) {
    absl::StrAppend(&page, "; without it, as the variable ", Bold(option.get_envname()), " says");
  }
  absl::StrAppend(&page, ".\n");
}

std::string Synopsis(const CLI::App& app, const CLI::App& command) {
  std::string text = Bold(absl::StrCat(app.get_name(), " ", command.get_name()));
  for (const CLI::Option* argument : Arguments(command)) {
    const std::string taken = Italic(TakenBy(*argument));
    absl::StrAppend(&text, " ", argument->get_required() ? taken : absl::StrCat("[", taken, "]"));
  }
  return text;
}

void AppendCommand(const CLI::App& app, const CLI::App& command, std::string& page) {
  absl::StrAppend(&page, ".SS ", Synopsis(app, command), "\n", Prose(command.get_description()),
                  ".\n");
  for (const CLI::Option* argument : Arguments(command)) {
    absl::StrAppend(&page, ".TP\n", Italic(TakenBy(*argument)), "\n",
                    Prose(argument->get_description()), ".\n");
  }
  for (const CLI::Option* option : ShownOptions(command)) {
    if (option != command.get_help_ptr()) AppendOption(*option, page);
  }
}

std::string KeysOfAJobFile() {
  std::vector<std::string> keys;
  for (const job::KeyOffer& offer : job::KeyOffers()) {
    std::string key = Bold(offer.name);
    if (!offer.values.empty()) {
      absl::StrAppend(&key, " (", Escaped(absl::StrJoin(offer.values, ", ")), ")");
    }
    keys.push_back(std::move(key));
  }
  return absl::StrJoin(keys, ",\n");
}

constexpr char kAfterCommands[] = R"(.SH EXIT STATUS
0: success. 2: bad usage or input. 1: failure at run time. 130: after Ctrl\-C.
With \fB\-\-json\fR errors are a line of JSON on standard error:
{"error": {"code": "NOT_FOUND", "message": "..."}}.
.SH ENVIRONMENT
.TP
.B HARMONY_SOCKET
The coordinator's socket; its folder is the runtime directory.
.TP
.BR XDG_RUNTIME_DIR ", " XDG_STATE_HOME ", " XDG_CACHE_HOME
Where the folders below are, as the XDG Base Directory Specification says.
.SH FILES
.TP
.IR $XDG_RUNTIME_DIR/harmony ", or " \(ti/.harmony
Socket, lock and list of processes of \fBharmony up\fR; removed when it stops.
.TP
.I \(ti/.local/state/harmony
Job database and logs; what jobs wrote is in their output_dir.
.TP
.I \(ti/.cache/harmony
Measured times. They are measured again where they are missing.
.TP
.IR /run/harmony ", " /var/lib/harmony
The same of the systemd service \fBharmony.service\fR.
.SH EXAMPLES
.nf
harmony plan job.yaml \-\-devices \(aqsim*2:mem=2GiB\(aq
harmony run job.yaml \-\-devices \(aqsim*2:mem=2GiB\(aq
harmony up \-\-devices \(aqsim*4:mem=1GiB\(aq \-\-detach
harmony submit job.yaml
harmony watch
harmony down
.fi
)";

}  // namespace

std::string Manual(const CLI::App& app, absl::string_view version) {
  std::string page = absl::StrCat(
      ".\\\" Written by the program from its own description: `harmony manual`.\n",
      ".TH HARMONY 1 \"\" \"", Escaped(version), "\" \"User Commands\"\n",
      // No hyphens and no stretched lines: most words here are names.
      ".nh\n.ad l\n.SH NAME\n", app.get_name(),
      " \\- train deep networks larger than the memory of all devices\n", ".SH SYNOPSIS\n.B ",
      app.get_name(), "\n.RI [ options ] \" command \" ...\n", ".SH DESCRIPTION\n",
      Prose(app.get_description()),
      "\nLosses and weights do not change by a bit with the number of devices, the grouping of "
      "layers, or processes dying on the way.\n",
      ".SH OPTIONS\nThese may stand behind a command, too.\n");
  for (const CLI::Option* option : ShownOptions(app)) AppendOption(*option, page);
  absl::StrAppend(&page, ".SH COMMANDS\n");
  for (const CLI::App* command : ShownCommands(app)) AppendCommand(app, *command, page);
  absl::StrAppend(&page, ".SH JOB FILE\nA job file is YAML. Its keys, which README.md explains:\n",
                  KeysOfAJobFile(), ".\n", kAfterCommands);
  return page;
}

}  // namespace harmony::client
