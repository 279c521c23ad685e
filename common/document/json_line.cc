#include "common/document/json_line.h"

#include <nlohmann/json.hpp>

namespace harmony::document {

std::string JsonLine(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string ErrorLine(const absl::Status& status) {
  return JsonLine({{"error",
                    {{"code", absl::StatusCodeToString(status.code())},
                     {"message", std::string(status.message())}}}});
}

}  // namespace harmony::document
