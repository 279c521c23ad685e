#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace harmony::model {

// The id whose row of the token table gets no gradient where it is read as an input (as a head's
// row it does): `pad_token_id` of the llama family, as transformers hands it to its embedding,
// negative ones counting from the end. -1: none; gpt2 has none. REQUIRES: a config.json that
// ParseModelConfig takes.
int64_t PaddingToken(absl::string_view config_json);

}  // namespace harmony::model
