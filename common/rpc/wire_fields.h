#pragma once

// Reading a wire message field by field, in straight code with one look at the end: the first
// mistake is kept, with the field's name, and every value that is out of range reads as the least
// one.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"

namespace harmony::rpc {

// Enumerations on the wire have the numbers of ours.
template <typename Wire, typename Enum>
Wire ToWire(Enum value) {
  return static_cast<Wire>(static_cast<int>(value));
}

class WireFields {
 public:
  // InvalidArgument: "<field> is <value>".
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  void Wrong(absl::string_view field, int64_t value) {
    if (ok()) status_ = absl::InvalidArgumentError(absl::StrCat(field, " is ", value));
  }
  // Of type T, at least `least`; so counts and indices.
  template <typename T>
  T AtLeast(int64_t least, T raw, absl::string_view field) {
    if (raw >= least) return raw;
    Wrong(field, raw);
    return static_cast<T>(least);
  }
  int Index(int32_t raw, absl::string_view field) { return AtLeast(0, raw, field); }
  Bytes Size(int64_t raw, absl::string_view field) { return Bytes(AtLeast(0, raw, field)); }
  // The only place where an enumeration of the wire becomes one of ours.
  template <typename Enum, typename Wire>
  Enum Enumerator(Wire raw, absl::string_view field) {
    const google::protobuf::EnumDescriptor* type = google::protobuf::GetEnumDescriptor<Wire>();
    if (type->FindValueByNumber(raw) != nullptr) return static_cast<Enum>(raw);
    if (ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(field, " is ", static_cast<int>(raw), ", which is no ", type->name()));
    }
    return Enum();
  }

 private:
  absl::Status status_;
};

}  // namespace harmony::rpc
