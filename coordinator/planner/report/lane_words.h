#pragma once

// What a lane does, in the words of reports. PURE.

#include <cstddef>

#include "common/base/kind_table.h"
#include "common/command/lane_kinds.h"

namespace harmony::planner {

struct LaneWords {
  command::LaneKind kind;
  const char* activity;  // behind the lane's device, or "host"
  const char* longer;    // a sentence (absl::Substitute); $0: the device's number, $1: "3ms longer"
};

inline constexpr LaneWords kLaneWords[] = {
    {command::LaneKind::kCompute, "computing", "device $0 computes $1"},
    {command::LaneKind::kH2DBulk, "loading weights", "copies from the host to device $0 take $1"},
    {command::LaneKind::kH2DStream, "loading activations",
     "copies from the host to device $0 take $1"},
    {command::LaneKind::kD2H, "copies to the host", "copies from device $0 to the host take $1"},
    {command::LaneKind::kP2P, "copies to other devices",
     "copies from device $0 to other devices take $1"},
    {command::LaneKind::kHostCompute, "updates on the host", "the host's updates take $1"},
    {command::LaneKind::kHostIo, "reading data", "reading the data takes $1"},
};
static_assert(IsTableOf<command::kLaneKinds>(kLaneWords));

constexpr const LaneWords& WordsOf(command::LaneKind kind) {
  return kLaneWords[static_cast<size_t>(kind)];
}

}  // namespace harmony::planner
