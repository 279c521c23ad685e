#pragma once

// JSON as other programs' files bring it: bounded and without surprises. PURE.

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::document {

// Parses one JSON text. InvalidArgument, beginning with `where`, when it is malformed, nested
// deeper than 64 levels, or holds a key twice in one object (readers differ in which of them
// counts).
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view where);

}  // namespace harmony::document
