#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace harmony::client {

// A message as JSON by protobuf's printer: field names as in the .proto, every field present.
// Unlike its mapping, 64-bit integers are numbers, and enum values lower-case names without their
// common prefix ("running"). A number that is not finite is the string "NaN", "Infinity" or
// "-Infinity".
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// Takes the texts out of a job's JSON that are long and never change, its file, plan and summary:
// where there are many lines about it. `status JOB` has them.
void DropTexts(nlohmann::ordered_json& job);

}  // namespace harmony::client
