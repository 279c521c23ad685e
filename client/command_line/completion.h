#pragma once

// What can stand at the end of a command line of `harmony` that somebody is typing. It is read off
// the declaration of commands and options that --help is printed from, so that the two cannot
// differ; a shell asks for it by the hidden command `harmony complete`.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace harmony::client {

// What an option or an argument takes, by the type name that --help shows.
enum class ValueKind {
  kOther,  // nothing can be offered: a number, a device
  kFile,
  kDirectory,
  kJob,
  kRun,      // a job or a directory
  kProcess,  // "worker-0"
  kSetting,  // key=value of a job file
  kOneOf,    // one of a few words
  kUnknown,  // nobody has said: add the name to the table in completion.cc
};
ValueKind KindOf(const CLI::Option& option);
// Of kOneOf, the words.
std::vector<std::string> WordsOf(const CLI::Option& option);

struct Candidate {
  std::string word;
  std::string meaning = {};  // for shells that show it; may be empty
};

struct Completion {
  // kUnknown: nobody has said what is taken here; a shell offers nothing, and a test fails.
  enum class Paths { kNone, kFiles, kDirectories, kUnknown };
  std::vector<Candidate> words;  // that begin as the last word does; one that ends with = goes on
  Paths paths = Paths::kNone;    // that the shell offers as well
};

// Values of options that stand on the line, by their names without dashes ("state-dir").
using GivenOptions = std::map<std::string, std::string>;

// What is known outside the command line. Each may be slow, and is only called where it is needed.
struct CompletionSources {
  std::function<std::vector<Candidate>(const GivenOptions&)> jobs;
  std::function<std::vector<Candidate>(const GivenOptions&)> processes;
};

// `words`: the program and the words up to the cursor, the last of which is being typed and may be
// empty.
Completion Complete(const CLI::App& app, const std::vector<std::string>& words,
                    const CompletionSources& sources);

// For the scripts of the shells: ":files", ":directories" or another word, then a line for each
// word, a tab and its meaning.
std::string CompletionText(const Completion& completion);

// The script that makes `shell` ("bash" or "zsh") ask; empty for another.
std::string CompletionScript(absl::string_view shell);

}  // namespace harmony::client
