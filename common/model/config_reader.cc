#include "common/model/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace harmony::model {
namespace {

// A value as a message shows it: short, and safe for bytes that are no UTF-8.
std::string Show(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 57), "...");
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, absl::string_view where,
                           absl::string_view prefix)
    : object_(object), where_(where), prefix_(prefix) {}

const nlohmann::json* ConfigReader::Find(absl::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::Has(absl::string_view key) const { return Find(key) != nullptr; }

bool ConfigReader::IsNull(absl::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it != object_.end() && it->is_null();
}

void ConfigReader::Fail(absl::StatusCode code, absl::string_view key, absl::string_view why) {
  if (!status_.ok()) return;
  const nlohmann::json* value = Find(key);
  status_ = absl::Status(
      code, value == nullptr
                ? absl::StrCat(where_, ": '", prefix_, key, "' is missing: ", why)
                : absl::StrCat(where_, ": '", prefix_, key, "' is ", Show(*value), ": ", why));
}

void ConfigReader::Refuse(absl::string_view key, absl::string_view why) {
  Fail(absl::StatusCode::kUnimplemented, key, absl::StrCat("not supported (", why, ")"));
}

void ConfigReader::Reject(absl::string_view key, absl::string_view why) {
  Fail(absl::StatusCode::kInvalidArgument, key, why);
}

void ConfigReader::Adopt(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

int64_t ConfigReader::RequiredSize(absl::string_view key, int64_t max) {
  if (!Has(key)) {
    Reject(key, "it must be given");
    return 1;
  }
  return Size(key, 1, max);
}

int64_t ConfigReader::Size(absl::string_view key, int64_t fallback, int64_t max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const bool fits = value->is_number_unsigned() && value->get<uint64_t>() >= 1 &&
                    value->get<uint64_t>() <= static_cast<uint64_t>(max);
  if (!fits) {
    Reject(key, absl::StrCat("it must be a whole number from 1 to ", max));
    return 1;
  }
  return value->get<int64_t>();
}

double ConfigReader::Number(absl::string_view key, double fallback, double min, double max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {  // NaN fails as well
    Reject(key, absl::StrCat("it must be a number from ", min, " to ", max));
    return fallback;
  }
  return number;
}

double ConfigReader::RequiredNumber(absl::string_view key, double min, double max) {
  if (!Has(key)) {
    Reject(key, "it must be given");
    return min;
  }
  return Number(key, min, min, max);
}

bool ConfigReader::Flag(absl::string_view key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Reject(key, "it must be true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigReader::Text(absl::string_view key, absl::string_view fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    Reject(key, "it must be a string");
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::optional<ConfigReader> ConfigReader::Object(absl::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    Reject(key, "it must be an object");
    return std::nullopt;
  }
  return ConfigReader(*value, where_, absl::StrCat(prefix_, key, "."));
}

void ConfigReader::RefuseUnlessFalse(absl::string_view key, absl::string_view why) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return;
  if ((value->is_object() || value->is_array()) && value->empty()) return;
  Refuse(key, why);
}

void ConfigReader::RefuseUnlessNumber(absl::string_view key, double harmless,
                                      absl::string_view why) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || (value->is_number() && value->get<double>() == harmless)) return;
  Refuse(key, why);
}

Activation ReadActivation(ConfigReader& reader, absl::string_view key, absl::string_view fallback) {
  const std::string name = reader.Text(key, fallback);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGelu;
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  reader.Refuse(key, "known: gelu_new, gelu_pytorch_tanh, gelu, silu, swish, relu");
  return Activation::kGelu;
}

}  // namespace harmony::model
