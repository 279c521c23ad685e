#pragma once

// JSON as it is written for programs that read line by line. PURE.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"

namespace harmony::document {

// A document as one line with its end. What is no UTF-8, such as a path may hold, is replaced:
// there is always a line, and it can be parsed.
std::string JsonLine(const nlohmann::ordered_json& json);

// What a command that prints JSON says of an error on standard error.
std::string ErrorLine(const absl::Status& status);

}  // namespace harmony::document
