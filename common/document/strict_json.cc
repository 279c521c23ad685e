#include "common/document/strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace harmony::document {
namespace {

// Where the library stopped, whose own words quote what may be no text at all.
std::string WordsFor(const nlohmann::json::exception& error, absl::string_view text) {
  const auto* const stopped = dynamic_cast<const nlohmann::json::parse_error*>(&error);
  if (stopped == nullptr) return "holds a number or a text that JSON cannot";
  if (stopped->byte > text.size()) return "not valid JSON: it ends too early";
  const absl::string_view before = text.substr(0, stopped->byte > 0 ? stopped->byte - 1 : 0);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  return absl::StrCat("not valid JSON in line ", line, ", column ", before.size() - begin + 1);
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view where) {
  using Json = nlohmann::json;
  // Who writes or walks the value recurses.
  constexpr int kMaxDepth = 64;
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const Json::parser_callback_t callback = [&](int depth, Json::parse_event_t event, Json& value) {
    if (!problem.empty()) return false;
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= kMaxDepth) problem = absl::StrCat("nested deeper than ", kMaxDepth, " levels");
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(value.get<std::string>()).second) {
          problem = absl::StrCat("key '", value.get<std::string>(), "' appears twice");
        }
        break;
      default:
        break;
    }
    return problem.empty();
  };
  Json result;
  try {
    result = Json::parse(text.data(), text.data() + text.size(), callback);
  } catch (const Json::exception& error) {
    if (problem.empty()) problem = WordsFor(error, text);
  }
  for (char& c : problem) {  // a key may be no text at all
    if (c < 0x20 || c == 0x7f) c = '?';
  }
  if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ": ", problem));
  return result;
}

}  // namespace harmony::document
