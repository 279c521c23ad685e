#pragma once

// YAML as people's files bring it: bounded and without surprises. PURE.

#include <yaml-cpp/yaml.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::document {

// Parses a text of one document. InvalidArgument, beginning with `where` (and the line), when it is
// malformed, larger than 1 MiB, holds control characters or another document. Nodes throw when they
// are asked for what they are not: a reader looks at their type first.
absl::StatusOr<YAML::Node> ParseYaml(absl::string_view text, absl::string_view where);

}  // namespace harmony::document
