#include "common/document/status_line.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/document/json_fields.h"
#include "common/document/json_line.h"

namespace harmony::document {

std::string EncodeStatus(const absl::Status& status) {
  return JsonLine(
      {{"code", static_cast<int>(status.code())}, {"message", std::string(status.message())}});
}

absl::Status DecodeStatus(absl::string_view line, absl::string_view who) {
  int code = 0;
  std::string message;
  const absl::Status read = ReadJson(line, "status", [&](const JsonField& root) {
    code = root.Get("code").Int(0);
    message = root.Get("message").Text();
  });
  if (!read.ok()) {
    return absl::InternalError(absl::StrCat(who, " ended before it could say why"));
  }
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace harmony::document
