#pragma once

// Reading a JSON document field by field: every mistake is found where it is, by the path of the
// field ("devices[0].h2d.alone.median"). The first one counts; after it every value reads as zero,
// so a reader is straight code with one check at its end. PURE.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"

namespace harmony::document {

// As ParseStrictJson, but NaN, Infinity and numbers beyond a double, which JSON does not have and
// other writers produce, become strings, so that they are refused by the name of their field.
absl::StatusOr<nlohmann::json> ParseJsonFields(absl::string_view text, absl::string_view where);

class JsonField;
// Parses a text and has `read` read it; the first mistake of either.
absl::Status ReadJson(absl::string_view text, absl::string_view where,
                      absl::FunctionRef<void(const JsonField& root)> read);

class JsonField {
 public:
  // `status` gets the first mistake, beginning with `where`. All must outlive the fields.
  JsonField(const nlohmann::json* value, absl::string_view where, absl::Status* status)
      : value_(value), where_(where), status_(status) {}

  // A field of an object; it must be there.
  JsonField Get(const char* name) const;
  bool Has(const char* name) const;
  // The elements of an array.
  std::vector<JsonField> Items() const;
  // No other fields than these may be there; another one is named, with the nearest of these.
  void Only(std::initializer_list<absl::string_view> names) const;

  std::string Text() const;
  std::string Source() const;  // the JSON text of what is there
  bool Flag() const;
  int64_t Integer(int64_t least, int64_t most = int64_t{1} << 62) const;
  int Int(int least, int most = std::numeric_limits<int>::max()) const {
    return static_cast<int>(Integer(least, most));
  }
  uint64_t Unsigned() const;
  // Finite, as are all numbers.
  double Number() const;
  double NotNegative(double most = std::numeric_limits<double>::max()) const;
  // Above 0, and within the bounds.
  double Positive(double least = 0, double most = std::numeric_limits<double>::max()) const;

  DType Precision() const;  // "fp32" or "bf16"

  // Records a mistake in this field, if it is the first.
  void Wrong(absl::string_view why) const;
  bool ok() const { return status_->ok(); }

 private:
  JsonField(const nlohmann::json* value, std::string path, const JsonField& parent)
      : value_(value), path_(std::move(path)), where_(parent.where_), status_(parent.status_) {}

  const nlohmann::json* value_;  // null after a mistake
  std::string path_;             // empty: the whole document
  absl::string_view where_;
  absl::Status* status_;
};

}  // namespace harmony::document
