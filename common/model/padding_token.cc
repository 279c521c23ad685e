#include "common/model/padding_token.h"

#include <nlohmann/json.hpp>
#include <string>

#include "common/document/strict_json.h"

namespace harmony::model {

int64_t PaddingToken(absl::string_view config_json) {
  const absl::StatusOr<nlohmann::json> config = document::ParseStrictJson(config_json, "");
  if (!config.ok() || !config->is_object() || config->value("model_type", "gpt2") == "gpt2") {
    return -1;
  }
  const auto token = config->find("pad_token_id");
  if (token == config->end() || !token->is_number_integer()) return -1;
  const int64_t id = token->get<int64_t>();
  return id < 0 ? id + config->value("vocab_size", int64_t{0}) : id;
}

}  // namespace harmony::model
