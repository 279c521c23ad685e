#pragma once

// Commands and plans <-> wire messages. Encoding never fails; decoding checks everything a reader
// will index with or branch on (enumerations, counts, signs), so what comes out can be trusted in
// shape. Thread-safe (pure functions).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/command/command.h"
#include "common/plan/plan.h"

namespace harmony::v1 {
class Command;
class Plan;
}  // namespace harmony::v1

namespace harmony::rpc {

void EncodeCommand(const command::Command& command, v1::Command* wire);
// InvalidArgument names the command's id and the field.
absl::StatusOr<command::Command> DecodeCommand(const v1::Command& wire);

void EncodePlan(const plan::Plan& plan, v1::Plan* wire);
// InvalidArgument names the field.
absl::StatusOr<plan::Plan> DecodePlan(const v1::Plan& wire);

// As bytes: what JobSetup.plan holds, and what the coordinator stores.
std::string SerializePlan(const plan::Plan& plan);
absl::StatusOr<plan::Plan> ParsePlan(absl::string_view bytes);

}  // namespace harmony::rpc
