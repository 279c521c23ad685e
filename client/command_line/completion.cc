#include "client/command_line/completion.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/command_line/declared.h"
#include "common/job/key_offers.h"

namespace harmony::client {
namespace {

// Where the cursor is.
struct Position {
  const CLI::App* command = nullptr;  // null: a command that there is not
  const CLI::Option* value_of = nullptr;
  std::string typed;   // of the word or the value
  std::string before;  // what of the word stands before the value: "--dtype="
  bool only_arguments = false;
  size_t arguments = 0;  // that stand before
  std::set<const CLI::Option*> given;
  GivenOptions values;
};

class Reader {
 public:
  explicit Reader(const CLI::App& app) : app_(app) { at_.command = &app; }

  Position Read(const std::vector<std::string>& words) {
    for (size_t i = 1; i + 1 < words.size() && at_.command != nullptr; ++i) Take(words[i]);
    if (at_.command != nullptr) Finish(words.size() < 2 ? "" : words.back());
    for (const CLI::Option* option : app_.get_options()) NoteEnvironment(*option);
    return std::move(at_);
  }

 private:
  bool IsOption(absl::string_view word) const {
    return !at_.only_arguments && word.size() > 1 && word.front() == '-';
  }

  // Null where there is none of this name, "--lines" or "-n". Options of the program are taken
  // behind a command, too.
  const CLI::Option* Find(const std::string& name) const {
    const CLI::Option* const option = at_.command->get_option_no_throw(name);
    return option == nullptr ? app_.get_option_no_throw(name) : option;
  }

  // A word before the one that is typed.
  void Take(const std::string& word) {
    if (at_.value_of != nullptr) {
      Note(*at_.value_of, word);
      at_.value_of = nullptr;
    } else if (word == "--" && !at_.only_arguments) {
      at_.only_arguments = true;
    } else if (IsOption(word)) {
      TakeOption(word);
    } else if (at_.command == &app_) {
      at_.command = FindCommand(app_, word);
    } else {
      ++at_.arguments;
    }
  }

  void TakeOption(const std::string& word) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const CLI::Option* const option = Find(parts.first);
    if (option == nullptr) return;
    at_.given.insert(option);
    if (!TakesValue(*option)) return;
    if (absl::StrContains(word, '=')) {
      Note(*option, parts.second);
    } else {
      at_.value_of = option;
    }
  }

  void Note(const CLI::Option& option, const std::string& value) {
    if (!option.get_lnames().empty()) at_.values[option.get_lnames().front()] = value;
  }

  // What the environment says where the line does not.
  void NoteEnvironment(const CLI::Option& option) {
    if (option.get_envname().empty() || at_.given.contains(&option)) return;
    if (const char* value = std::getenv(option.get_envname().c_str())) Note(option, value);
  }

  void Finish(const std::string& word) {
    at_.typed = word;
    const size_t equals = word.find('=');
    if (at_.value_of != nullptr || !IsOption(word) || equals == std::string::npos) return;
    const CLI::Option* const option = Find(word.substr(0, equals));
    if (option == nullptr || !TakesValue(*option)) return;
    at_.value_of = option;
    at_.before = word.substr(0, equals + 1);
    at_.typed = word.substr(equals + 1);
  }

  const CLI::App& app_;
  Position at_;
};

class Offer {
 public:
  Offer(const Position& at, const CompletionSources& sources) : at_(at), sources_(sources) {}

  Completion Take() { return std::move(completion_); }

  void Word(absl::string_view word, absl::string_view meaning = "") {
    if (!absl::StartsWith(word, at_.typed) || !offered_.insert(std::string(word)).second) return;
    completion_.words.push_back({absl::StrCat(at_.before, word), std::string(meaning)});
  }

  void Value(const CLI::Option& option) {
    switch (KindOf(option)) {
      case ValueKind::kFile:
        completion_.paths = Completion::Paths::kFiles;
        return;
      case ValueKind::kRun:
        Words(sources_.jobs);
        completion_.paths = Completion::Paths::kDirectories;
        return;
      case ValueKind::kDirectory:
        completion_.paths = Completion::Paths::kDirectories;
        return;
      case ValueKind::kJob:
        return Words(sources_.jobs);
      case ValueKind::kProcess:
        return Words(sources_.processes);
      case ValueKind::kSetting:
        return Setting();
      case ValueKind::kOneOf:
        for (const std::string& word : WordsOf(option)) Word(word);
        return;
      case ValueKind::kOther:
        return;
      case ValueKind::kUnknown:
        completion_.paths = Completion::Paths::kUnknown;
        return;
    }
  }

  void Options(const CLI::App& app) {
    for (const CLI::Option* option : ShownOptions(app)) {
      if (at_.given.contains(option) && option->get_items_expected_max() <= 1) continue;
      for (const std::string& name : option->get_lnames()) {
        Word(absl::StrCat("--", name), option->get_description());
      }
    }
  }

 private:
  void Words(const std::function<std::vector<Candidate>(const GivenOptions&)>& source) {
    if (!source) return;
    for (const Candidate& candidate : source(at_.values)) Word(candidate.word, candidate.meaning);
  }

  // "mo" is a key, "mode=h" its value.
  void Setting() {
    const size_t equals = at_.typed.find('=');
    for (const job::KeyOffer& offer : job::KeyOffers()) {
      if (equals == std::string::npos) {
        Word(absl::StrCat(offer.name, "="));
      } else if (offer.name == at_.typed.substr(0, equals)) {
        for (const absl::string_view value : offer.values) {
          Word(absl::StrCat(offer.name, "=", value));
        }
        if (offer.is_path) completion_.paths = Completion::Paths::kFiles;
      }
    }
  }

  const Position& at_;
  const CompletionSources& sources_;
  Completion completion_;
  std::set<std::string> offered_;  // --help is of each command and of the program
};

absl::string_view NameOf(Completion::Paths paths) {
  switch (paths) {
    case Completion::Paths::kNone:
      return "none";
    case Completion::Paths::kFiles:
      return "files";
    case Completion::Paths::kDirectories:
      return "directories";
    case Completion::Paths::kUnknown:
      return "unknown";
  }
  return "none";
}

// A shell splits its answer at tabs and ends of lines.
std::string OnOneLine(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\n", " "}, {"\t", " "}});
}

constexpr char kBashScript[] =
    R"(# Completion of harmony's command line in bash, as `harmony completion bash` prints it.
_harmony() {
  # Bash splits words at = and :, too; what stands together is one word here. The last one ends at the cursor.
  local rest=${COMP_LINE:0:COMP_POINT} words=() part lead i
  for ((i = 0; i <= COMP_CWORD; i++)); do
    lead=${rest%%[![:space:]]*}
    rest=${rest:${#lead}}
    part=${COMP_WORDS[i]}
    if ((i == COMP_CWORD)); then part=$rest; fi
    if [[ -z $lead ]] && ((i > 0)); then
      words[${#words[@]} - 1]+=$part
    else
      words+=("$part")
    fi
    rest=${rest:${#part}}
  done
  local answer paths
  mapfile -t answer < <("$1" complete "${words[@]}" 2>/dev/null)
  paths=${answer[0]-}
  # What is replaced is only what stands behind the last = or :.
  local typed=${words[${#words[@]} - 1]} word
  local kept=${typed%"$2"}
  COMPREPLY=()
  for word in "${answer[@]:1}"; do
    word=${word%%$'\t'*}
    COMPREPLY+=("${word#"$kept"}")
  done
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
  case $paths in
    :files) compopt -o default ;;
    :directories) compopt -o plusdirs ;;
  esac
}
complete -F _harmony harmony
)";

constexpr char kZshScript[] = R"(#compdef harmony
# Completion of harmony's command line in zsh, as `harmony completion zsh` prints it.
_harmony() {
  local -a answer ended shown open
  local line word meaning
  answer=("${(@f)$("${(Q)words[1]}" complete "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  for line in "${(@)answer[2,-1]}"; do
    word=${line%%$'\t'*} meaning=${line#*$'\t'}
    if [[ $word == *= ]]; then
      open+=("$word")
    else
      ended+=("$word")
      shown+=("$word${meaning:+  $meaning}")
    fi
  done
  ((${#ended})) && compadd -l -d shown -a ended
  ((${#open})) && compadd -S '' -a open
  case ${answer[1]} in
    :files) compset -P '*='; _files ;;
    :directories) compset -P '*='; _files -/ ;;
  esac
}
if [[ ${funcstack[1]} == _harmony ]]; then _harmony "$@"; else compdef _harmony harmony; fi
)";

}  // namespace

ValueKind KindOf(const CLI::Option& option) {
  static const auto* const kKinds = new std::map<std::string, ValueKind>{
      {"FILE", ValueKind::kFile},          {"JOB.yaml", ValueKind::kFile},
      {"P.json", ValueKind::kFile},        {"CLUSTER.yaml", ValueKind::kFile},
      {"DIR", ValueKind::kDirectory},      {"JOB", ValueKind::kJob},
      {"RUN_DIR_OR_JOB", ValueKind::kRun}, {"PROCESS", ValueKind::kProcess},
      {"key=value", ValueKind::kSetting},  {"SPEC", ValueKind::kOther},
      {"BYTES", ValueKind::kOther},        {"STEP", ValueKind::kOther},
      {"30d", ValueKind::kOther},          {"INT", ValueKind::kOther},
      {"GROUP", ValueKind::kOther},        {"HOST:PORT", ValueKind::kOther},
      {"RULE", ValueKind::kOther},
  };
  if (!WordsOf(option).empty()) return ValueKind::kOneOf;
  const auto kind = kKinds->find(option.get_type_name());
  return kind == kKinds->end() ? ValueKind::kUnknown : kind->second;
}

std::vector<std::string> WordsOf(const CLI::Option& option) {
  // As CLI::IsMember describes itself: "TEXT:{fp32,bf16}".
  const std::string type = option.get_type_name();
  const size_t begin = type.find(":{");
  if (begin == std::string::npos || type.back() != '}') return {};
  return absl::StrSplit(type.substr(begin + 2, type.size() - begin - 3), ',');
}

Completion Complete(const CLI::App& app, const std::vector<std::string>& words,
                    const CompletionSources& sources) {
  const Position at = Reader(app).Read(words);
  Offer offer(at, sources);
  if (at.command == nullptr) return offer.Take();
  if (at.value_of != nullptr) {
    offer.Value(*at.value_of);
  } else if (!at.only_arguments && absl::StartsWith(at.typed, "-")) {
    offer.Options(*at.command);
    if (at.command != &app) offer.Options(app);
  } else if (at.command == &app) {
    for (const CLI::App* command : ShownCommands(app)) {
      offer.Word(command->get_name(), command->get_description());
    }
  } else if (const auto arguments = Arguments(*at.command); at.arguments < arguments.size()) {
    offer.Value(*arguments[at.arguments]);
  }
  return offer.Take();
}

std::string CompletionText(const Completion& completion) {
  std::string text = absl::StrCat(":", NameOf(completion.paths), "\n");
  for (const Candidate& candidate : completion.words) {
    absl::StrAppend(&text, candidate.word, "\t", OnOneLine(candidate.meaning), "\n");
  }
  return text;
}

std::string CompletionScript(absl::string_view shell) {
  return shell == "bash" ? kBashScript : shell == "zsh" ? kZshScript : "";
}

}  // namespace harmony::client
