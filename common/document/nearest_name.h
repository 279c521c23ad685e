#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace harmony::document {

// "unknown <kind> '<name>'; did you mean '<known>'?", or all known names where none is near.
std::string UnknownName(absl::string_view kind, absl::string_view name,
                        absl::Span<const absl::string_view> known);

}  // namespace harmony::document
