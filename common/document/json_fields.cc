#include "common/document/json_fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/document/nearest_name.h"
#include "common/document/strict_json.h"

namespace harmony::document {
namespace {

bool IsToken(char c) { return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.'; }

// Parsed leniently: "NaN", "-Infinity" and "1e999" all are numbers to it.
bool IsNonFiniteNumber(absl::string_view token) {
  double value = 0;
  return absl::SimpleAtod(token, &value) && !std::isfinite(value);
}

std::string QuoteNonFinite(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string || !IsToken(c)) {
      if (in_string && c == '\\' && i + 1 < text.size()) result += text[i++];
      if (c == '"') in_string = !in_string;
      result += text[i++];
      continue;
    }
    size_t end = i;
    while (end < text.size() && IsToken(text[end])) ++end;
    const absl::string_view token = text.substr(i, end - i);
    absl::StrAppend(&result, IsNonFiniteNumber(token) ? absl::StrCat("\"", token, "\"") : token);
    i = end;
  }
  return result;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonFields(absl::string_view text, absl::string_view where) {
  return ParseStrictJson(QuoteNonFinite(text), where);
}

absl::Status ReadJson(absl::string_view text, absl::string_view where,
                      absl::FunctionRef<void(const JsonField& root)> read) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonFields(text, where));
  absl::Status status;
  read(JsonField(&json, where, &status));
  return status;
}

DType JsonField::Precision() const {
  const std::string name = Text();
  const std::optional<DType> dtype = ParsePrecision(name);
  if (dtype == DType::kF32 || dtype == DType::kBF16) return *dtype;
  if (ok()) Wrong(absl::StrCat("is '", name.substr(0, 60), "'; known are fp32, bf16"));
  return DType::kF32;
}

void JsonField::Wrong(absl::string_view why) const {
  if (!status_->ok()) return;
  *status_ =
      absl::InvalidArgumentError(absl::StrCat(where_, ": ", path_, path_.empty() ? "" : ": ", why));
}

bool JsonField::Has(const char* name) const {
  return value_ != nullptr && value_->is_object() && value_->contains(name);
}

JsonField JsonField::Get(const char* name) const {
  const std::string path = path_.empty() ? name : absl::StrCat(path_, ".", name);
  if (value_ == nullptr) return JsonField(nullptr, path, *this);
  if (!value_->is_object()) {
    Wrong("must be an object");
    return JsonField(nullptr, path, *this);
  }
  const auto at = value_->find(name);
  JsonField field(at == value_->end() ? nullptr : &*at, path, *this);
  if (at == value_->end()) field.Wrong("is missing");
  return field;
}

std::vector<JsonField> JsonField::Items() const {
  std::vector<JsonField> items;
  if (value_ == nullptr) return items;
  if (!value_->is_array()) {
    Wrong("must be a list");
    return items;
  }
  for (size_t i = 0; i < value_->size(); ++i) {
    items.push_back(JsonField(&(*value_)[i], absl::StrCat(path_, "[", i, "]"), *this));
  }
  return items;
}

void JsonField::Only(std::initializer_list<absl::string_view> names) const {
  if (value_ == nullptr || !value_->is_object()) return;
  for (const auto& [key, value] : value_->items()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    Wrong(UnknownName("field", key, std::vector<absl::string_view>(names)));
  }
}

std::string JsonField::Text() const {
  if (value_ == nullptr) return "";
  if (value_->is_string()) return value_->get<std::string>();
  Wrong("must be a text");
  return "";
}

bool JsonField::Flag() const {
  if (value_ == nullptr) return false;
  if (value_->is_boolean()) return value_->get<bool>();
  Wrong("must be true or false");
  return false;
}

int64_t JsonField::Integer(int64_t least, int64_t most) const {
  if (value_ == nullptr) return least;
  if (!value_->is_number_integer()) {
    Wrong(absl::StrCat("must be a whole number, is ", value_->dump()));
    return least;
  }
  const bool huge =
      value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(most);
  const int64_t number = huge ? most : value_->get<int64_t>();
  if (!huge && number >= least && number <= most) return number;
  Wrong(absl::StrCat("must be at ", huge || number > most ? "most " : "least ",
                     huge || number > most ? most : least, ", is ", value_->dump()));
  return least;
}

uint64_t JsonField::Unsigned() const {
  if (value_ == nullptr) return 0;
  if (value_->is_number_unsigned()) return value_->get<uint64_t>();
  Wrong(absl::StrCat("must be a whole number of at least 0, is ", value_->dump()));
  return 0;
}

double JsonField::Number() const {
  if (value_ == nullptr) return 1;
  if (value_->is_number()) {
    const double number = value_->get<double>();
    if (std::isfinite(number)) return number;
  }
  const bool text = value_->is_string();
  Wrong(absl::StrCat("must be a finite number, is ",
                     text ? value_->get<std::string>() : value_->dump()));
  return 1;
}

std::string JsonField::Source() const { return value_ == nullptr ? "{}" : value_->dump(); }

double JsonField::NotNegative(double most) const {
  const double number = Number();
  if (number < 0) Wrong(absl::StrCat("must not be negative, is ", number));
  if (number > most) Wrong(absl::StrCat("must be at most ", most, ", is ", number));
  return number;
}

double JsonField::Positive(double least, double most) const {
  const double number = Number();
  if (number <= 0) Wrong(absl::StrCat("must be above 0, is ", number));
  if (number < least) Wrong(absl::StrCat("must be at least ", least, ", is ", number));
  if (number > most) Wrong(absl::StrCat("must be at most ", most, ", is ", number));
  return number;
}

}  // namespace harmony::document
