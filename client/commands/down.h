#pragma once

#include <string>

#include "client/commands/common.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::client {

struct DownOptions {
  bool now = false;         // kill all at once, without a checkpoint
  bool say_losses = false;  // that `now` would mean, and end nothing
};
// Waits until everything is gone, and says what for. Not being up is no error.
int DownCommand(const GlobalOptions& global, const DownOptions& options);

// What an end without a checkpoint would lose of a job: "steps 11 to 20, trained since
// checkpoint-10", or empty. The checkpoints are those in its output_dir.
std::string LossWithoutCheckpoint(const v1::Job& job);

}  // namespace harmony::client
