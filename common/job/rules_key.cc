#include "common/job/rules_key.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/document/nearest_name.h"
#include "common/job/read_values.h"

namespace harmony::job {
namespace {

using absl::string_view;

constexpr string_view kNames = "names", kDimensions = "dimensions", kDecay = "weight_decay",
                      kFactor = "learning_rate_factor";
constexpr std::array<string_view, 4> kFields = {kNames, kDimensions, kDecay, kFactor};
constexpr int64_t kMostDimensions = 64;  // as many as PyTorch has

// One value or a list of them, each as a value.
std::vector<JobValue> OneOrMore(const JobValue& value) {
  if (value.kind != JobValue::Kind::kList) return {value};
  std::vector<JobValue> all;
  for (const std::string& item : value.items) {
    all.emplace_back().text = item;
    all.back().origin = value.origin;
  }
  return all;
}

absl::Status ReadNames(const JobKey& key, const JobValue& value, ParameterRule* rule) {
  const std::vector<JobValue> all = OneOrMore(value);
  const bool read = absl::c_all_of(all, [&](const JobValue& each) {
    return ReadText(key, each, &rule->names.emplace_back()).ok();
  });
  if (read && !all.empty()) return absl::OkStatus();
  return Wrong(key, value, "a text like \"*.bias\", or a list of such texts");
}

absl::Status ReadDimensions(const JobKey& key, const JobValue& value, ParameterRule* rule) {
  const std::vector<JobValue> all = OneOrMore(value);
  const bool read = absl::c_all_of(all, [&](const JobValue& each) {
    int64_t dimensions = 0;
    if (!ReadInt(key, each, 0, kMostDimensions, &dimensions).ok()) return false;
    rule->dimensions.push_back(static_cast<int>(dimensions));
    return true;
  });
  if (read && !all.empty()) return absl::OkStatus();
  return Wrong(key, value, "a number of dimensions from 0, or a list of such numbers");
}

absl::Status ReadEffect(const JobKey& key, const JobValue& value, std::optional<double>* effect) {
  return ReadDouble(key, value, 0, kHuge, "a number of at least 0", &effect->emplace());
}

absl::Status ReadField(string_view name, const JobKey& key, const JobValue& value,
                       ParameterRule* rule) {
  if (name == kNames) return ReadNames(key, value, rule);
  if (name == kDimensions) return ReadDimensions(key, value, rule);
  return ReadEffect(key, value, name == kDecay ? &rule->weight_decay : &rule->learning_rate_factor);
}

// `which`: "parameter_rules: rule 2".
absl::Status ReadRule(const JobMap& map, const std::string& which, ParameterRule* rule) {
  std::vector<string_view> given;
  for (const auto& [name, value] : map.fields) {
    if (!absl::c_linear_search(kFields, name)) {
      return absl::InvalidArgumentError(absl::StrCat(value.origin, ": ", which, ": ",
                                                     document::UnknownName("key", name, kFields)));
    }
    if (absl::c_linear_search(given, name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(value.origin, ": ", which, ": ", name, " is given twice"));
    }
    given.push_back(name);
    const std::string label = absl::StrCat(which, ": ", name);
    JobKey field;  // so that messages name the rule
    field.name = label;
    HARMONY_RETURN_IF_ERROR(ReadField(name, field, value, rule));
  }
  const auto lacks = [&](string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(map.origin, ": ", which, " ", what));
  };
  if (rule->names.empty() && rule->dimensions.empty()) {
    return lacks(
        "says of no parameters that it is for them: give it names, dimensions or both "
        "(names: \"*\" is all)");
  }
  if (!rule->weight_decay && !rule->learning_rate_factor) {
    return lacks("changes nothing: give it weight_decay, learning_rate_factor or both");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParameterRules(const JobKey& key, const JobValue& value, JobSpec& job) {
  job.parameter_rules.clear();
  if (value.kind == JobValue::Kind::kList && value.items.empty()) return absl::OkStatus();
  if (value.kind != JobValue::Kind::kMaps) {
    return Wrong(key, value,
                 "a list of rules, each like {names: \"*.bias\", weight_decay: 0} or "
                 "{dimensions: [0, 1], learning_rate_factor: 0.1}");
  }
  for (const JobMap& map : value.maps) {
    ParameterRule& rule = job.parameter_rules.emplace_back();
    HARMONY_RETURN_IF_ERROR(
        ReadRule(map, absl::StrCat(key.name, ": rule ", job.parameter_rules.size()), &rule));
  }
  return absl::OkStatus();
}

std::string PrintParameterRules(const JobSpec& job) {
  nlohmann::json rules = nlohmann::json::array();
  for (const ParameterRule& rule : job.parameter_rules) {
    nlohmann::json& printed = rules.emplace_back(nlohmann::json::object());
    if (!rule.names.empty()) printed[std::string(kNames)] = rule.names;
    if (!rule.dimensions.empty()) printed[std::string(kDimensions)] = rule.dimensions;
    if (rule.weight_decay) printed[std::string(kDecay)] = *rule.weight_decay;
    if (rule.learning_rate_factor) printed[std::string(kFactor)] = *rule.learning_rate_factor;
  }
  // A name that is no UTF-8 must not throw.
  return rules.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace harmony::job
