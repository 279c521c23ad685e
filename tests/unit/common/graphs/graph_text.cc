#include "tests/unit/common/graphs/graph_text.h"

#include <gtest/gtest.h>

#include <regex>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace harmony::graphs {
namespace {

class PhaseWriter {
 public:
  void Add(const std::string& line) {
    static const std::regex input(R"((\w+) = (slot|saved|tangent|samples) (\d+))");
    static const std::regex output(R"((output|saved|gradient|update|loss) (\d+) = (\w+))");
    static const std::regex operation(R"((.*) = (\w+::\w+)(\.(\w+))?\((.*)\))");
    std::smatch match;
    if (std::regex_match(line, match, input)) {
      inputs_.push_back(Entry(NewValue(match[1]), match[2], match[3]));
    } else if (std::regex_match(line, match, output)) {
      outputs_.push_back(Entry(values_.at(match[3]), match[1], match[2]));
    } else if (std::regex_match(line, match, operation)) {
      AddOperation(match[1], match[2], match[4], match[5]);
    } else {
      ADD_FAILURE() << line;
    }
  }

  std::string Json() const {
    return absl::StrCat("{\"values\": ", values_.size(), ", \"inputs\": [",
                        absl::StrJoin(inputs_, ", "), "], \"ops\": [", absl::StrJoin(ops_, ",\n"),
                        "], \"outputs\": [", absl::StrJoin(outputs_, ", "), "]}");
  }

 private:
  int NewValue(const std::string& name) {
    return values_.emplace(name, static_cast<int>(values_.size())).first->second;
  }

  static std::string Entry(int value, const std::string& kind, const std::string& index) {
    return absl::StrCat("{\"value\": ", value, ", \"kind\": \"", kind, "\", \"index\": ", index,
                        "}");
  }

  std::string Arguments(std::string text) const {
    static const std::regex use(R"(%(\w+))"), number(R"((-?\d+\.\d*(e-?\d+)?))"),
        flag(R"(\b(true|false)\b)"), type(R"(\b(b?float\d+|u?int\d+)\b)"), device(R"(\bcpu\b)");
    text = std::regex_replace(text, number, R"({"float": "$1"})");
    text = std::regex_replace(text, flag, R"({"bool": $1})");
    text = std::regex_replace(text, type, R"({"dtype": "$1"})");
    text = std::regex_replace(text, device, R"({"device": "default"})");
    std::smatch match;
    while (std::regex_search(text, match, use)) {
      text = absl::StrCat(std::string(match.prefix()), "{\"value\": ", values_.at(match[1]), "}",
                          std::string(match.suffix()));
    }
    return text;
  }

  void AddOperation(const std::string& results, const std::string& name,
                    const std::string& overload, const std::string& arguments) {
    absl::string_view names = results;
    const bool list = absl::ConsumePrefix(&names, "[") && absl::ConsumeSuffix(&names, "]");
    const std::string given = Arguments(arguments);
    std::vector<int> numbers;
    for (absl::string_view result : absl::StrSplit(names, ", ")) {
      numbers.push_back(result == "_" ? -1 : NewValue(std::string(result)));
    }
    ops_.push_back(absl::StrCat("{\"op\": \"", name, "\", \"overload\": \"", overload,
                                "\", \"arguments\": [", given, "], \"results\": [",
                                absl::StrJoin(numbers, ", "), "]", list ? ", \"list\": true" : "",
                                "}"));
  }

  std::map<std::string, int> values_;
  std::vector<std::string> inputs_, ops_, outputs_;
};

}  // namespace

std::string PhaseJson(absl::string_view lines) {
  PhaseWriter writer;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    const std::string text(absl::StripAsciiWhitespace(line));
    if (!text.empty()) writer.Add(text);
  }
  return writer.Json();
}

std::string SlotJson(absl::string_view shape, absl::string_view dtype) {
  return absl::StrCat("{\"dtype\": \"", dtype, "\", \"shape\": ", shape, "}");
}

std::string GraphJson(const std::map<std::string, std::string>& lines_by_phase,
                      std::vector<std::string> slots) {
  if (slots.empty()) slots.assign(8, SlotJson("[\"n\"]"));
  std::vector<std::string> phases;
  for (const auto& [name, lines] : lines_by_phase) {
    phases.push_back(absl::StrCat("\"", name, "\": ", PhaseJson(lines)));
  }
  return absl::StrCat("{\"harmony_graph\": 1, \"slots\": [", absl::StrJoin(slots, ", "),
                      "], \"phases\": {", absl::StrJoin(phases, ",\n"), "}}");
}

}  // namespace harmony::graphs
