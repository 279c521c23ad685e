#pragma once

// The manual page harmony(1), written from the declaration of commands and options that --help is
// printed from.

#include <string>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
}  // namespace CLI

namespace harmony::client {

// As source of man(1). `version` stands at its foot.
std::string Manual(const CLI::App& app, absl::string_view version);

}  // namespace harmony::client
