#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace harmony {

// A message as JSON: field names as in the .proto, every field present, 64-bit integers as numbers,
// enum values as lower-case names without their common prefix ("running").
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace harmony
