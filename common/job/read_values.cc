#include "common/job/read_values.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace harmony::job {

absl::Status Wrong(const JobKey& key, const JobValue& value, absl::string_view must) {
  const std::string shown =
      value.kind == JobValue::Kind::kScalar
          ? absl::StrCat("'", absl::Utf8SafeCEscape(value.text.substr(0, 100)), "'")
          : std::string("a list or a map");
  return absl::InvalidArgumentError(
      absl::StrCat(value.origin, ": ", key.name, " is ", shown, "; it must be ", must));
}

bool IsPlain(const JobValue& value) {
  return value.kind == JobValue::Kind::kScalar && !value.quoted;
}

absl::Status ReadInt(const JobKey& key, const JobValue& value, int64_t min, int64_t max,
                     int64_t* out) {
  int64_t number = 0;
  if (!IsPlain(value) || !absl::SimpleAtoi(value.text, &number) || number < min || number > max) {
    return Wrong(key, value,
                 max == kMaxInt64 ? absl::StrCat("a whole number of at least ", min)
                                  : absl::StrCat("a whole number from ", min, " to ", max));
  }
  *out = number;
  return absl::OkStatus();
}

absl::Status ReadDouble(const JobKey& key, const JobValue& value, double min, double max,
                        absl::string_view must, double* out) {
  double number = 0;
  if (!IsPlain(value) || !absl::SimpleAtod(value.text, &number) ||
      !(number >= min && number <= max)) {  // NaN fails as well
    return Wrong(key, value, must);
  }
  *out = number;
  return absl::OkStatus();
}

absl::Status ReadBool(const JobKey& key, const JobValue& value, bool* out) {
  const bool yes = value.text == "true" || value.text == "True" || value.text == "TRUE";
  const bool no = value.text == "false" || value.text == "False" || value.text == "FALSE";
  if (!IsPlain(value) || (!yes && !no)) return Wrong(key, value, "true or false");
  *out = yes;
  return absl::OkStatus();
}

absl::Status ReadText(const JobKey& key, const JobValue& value, std::string* out) {
  if (value.kind != JobValue::Kind::kScalar || value.text.empty()) {
    return Wrong(key, value, "a text");
  }
  if (absl::c_any_of(value.text, absl::ascii_iscntrl)) {  // terminals would obey them
    return Wrong(key, value, "a text without control characters");
  }
  *out = value.text;
  return absl::OkStatus();
}

}  // namespace harmony::job
