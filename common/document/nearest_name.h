#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace harmony::document {

// "unknown <kind> '<name>'; did you mean '<known>'?", or all known names where none is near.
std::string UnknownName(absl::string_view kind, absl::string_view name,
                        absl::Span<const absl::string_view> known);

// Of the known names those nearest to a pattern, of which each '*' stands for any text: at most
// `most`, the nearest first, equally near ones in their order.
std::vector<absl::string_view> NearestNames(absl::string_view pattern,
                                            absl::Span<const absl::string_view> known, size_t most);

}  // namespace harmony::document
