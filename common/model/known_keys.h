#pragma once

// The keys of a config.json that are known: read by a parser, or without effect on training (what
// transformers writes for generation, for classification heads, for itself). An unknown switch that
// is on may change the result: ParseModelConfig refuses it by name. What else is unknown is
// reported.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/model_config.h"

namespace harmony::model {

bool IsKnownConfigKey(Family family, absl::string_view key);

// The keys with a value that are neither known nor refused; printable. Empty for text that
// ParseModelConfig does not take.
std::vector<std::string> UnknownConfigKeys(Family family, absl::string_view json);

}  // namespace harmony::model
