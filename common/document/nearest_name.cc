#include "common/document/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace harmony::document {
namespace {

constexpr size_t kLongestShown = 100;
constexpr size_t kShortestWithin = 4;

// Levenshtein's distance. With `stars`, a '*' in `a` becomes any text without a cost.
size_t EditDistance(absl::string_view a, absl::string_view b, bool stars = false) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    if (stars && a[i - 1] == '*') {
      for (size_t j = 1; j <= b.size(); ++j) row[j] = std::min(row[j], row[j - 1]);
      continue;
    }
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string UnknownName(absl::string_view kind, absl::string_view name,
                        absl::Span<const absl::string_view> known) {
  name = name.substr(0, kLongestShown);
  absl::string_view nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  const std::string given = absl::AsciiStrToLower(name);
  for (const absl::string_view candidate : known) {
    const size_t distance = EditDistance(given, absl::AsciiStrToLower(candidate));
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  // Else one that has the other's words and more, or some of them.
  for (const absl::string_view candidate : known) {
    if (!nearest.empty()) break;
    const std::string theirs = absl::AsciiStrToLower(candidate);
    const bool within = absl::StrContains(theirs, given) || absl::StrContains(given, theirs);
    if (within && std::min(name.size(), candidate.size()) >= kShortestWithin) nearest = candidate;
  }
  return absl::StrCat("unknown ", kind, " '", absl::CHexEscape(name), "'; ",
                      nearest.empty()
                          ? absl::StrCat("known ", kind, "s: ", absl::StrJoin(known, ", "))
                          : absl::StrCat("did you mean '", nearest, "'?"));
}

std::vector<absl::string_view> NearestNames(absl::string_view pattern,
                                            absl::Span<const absl::string_view> known,
                                            size_t most) {
  pattern = pattern.substr(0, kLongestShown);
  std::vector<std::pair<size_t, absl::string_view>> all;
  for (const absl::string_view name : known) {
    all.emplace_back(EditDistance(pattern, name, /*stars=*/true), name);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<absl::string_view> nearest;
  for (size_t i = 0; i < std::min(most, all.size()); ++i) nearest.push_back(all[i].second);
  return nearest;
}

}  // namespace harmony::document
