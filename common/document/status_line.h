#pragma once

// A status as a line of JSON, from one process to another. PURE.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace harmony::document {

std::string EncodeStatus(const absl::Status& status);
// Internal, saying that `who` ended before it could say why, when this is no such line.
absl::Status DecodeStatus(absl::string_view line, absl::string_view who);

}  // namespace harmony::document
