#pragma once

// What each kind of lane is: the one table that all ask. A new kind is an enumerator of LaneKind
// and a row here; see docs/adding_a_kind.md. PURE.

#include <cstddef>

#include "common/base/kind_table.h"
#include "common/command/command.h"

namespace harmony::command {

inline constexpr int kLaneKinds = static_cast<int>(LaneKind::kHostIo) + 1;

// The program that carries out its commands; those of kSwapper for a device with copies=worker its
// worker (plan::DeviceSpec::worker_copies).
enum class LaneOwner : uint8_t { kWorker, kSwapper, kHostWorker };

// What it moves bytes over: lanes of a device with the same link take turns on it.
enum class LaneLink : uint8_t { kNone, kH2D, kD2H, kP2P };

struct LaneTraits {
  LaneKind kind;
  const char* name;   // in logs and as the semaphore's name, before the device's number
  const char* title;  // of its row in a timeline
  LaneOwner owner;
  LaneLink link;
};

inline constexpr LaneTraits kLaneTraits[] = {
    {LaneKind::kCompute, "compute", "compute", LaneOwner::kWorker, LaneLink::kNone},
    {LaneKind::kH2DBulk, "h2d_bulk", "h2d weights", LaneOwner::kSwapper, LaneLink::kH2D},
    {LaneKind::kH2DStream, "h2d_stream", "h2d activations", LaneOwner::kSwapper, LaneLink::kH2D},
    {LaneKind::kD2H, "d2h", "d2h", LaneOwner::kSwapper, LaneLink::kD2H},
    {LaneKind::kP2P, "p2p", "p2p out", LaneOwner::kSwapper, LaneLink::kP2P},
    {LaneKind::kHostCompute, "host_compute", "updates", LaneOwner::kHostWorker, LaneLink::kNone},
    {LaneKind::kHostIo, "host_io", "data and checkpoints", LaneOwner::kHostWorker, LaneLink::kNone},
};
static_assert(IsTableOf<kLaneKinds>(kLaneTraits));

constexpr const LaneTraits& TraitsOf(LaneKind kind) {
  return kLaneTraits[static_cast<size_t>(kind)];
}

// There is one of it, not one for each device.
constexpr bool IsHostKind(LaneKind kind) { return TraitsOf(kind).owner == LaneOwner::kHostWorker; }

// Kinds that each device has a lane of. They come before those of the host.
inline constexpr int kDeviceLaneKinds = [] {
  int count = 0;
  for (int kind = 0; kind < kLaneKinds; ++kind) {
    count += int{!IsHostKind(static_cast<LaneKind>(kind))};
  }
  return count;
}();
static_assert(!IsHostKind(static_cast<LaneKind>(kDeviceLaneKinds - 1)));

// All kinds of lanes that a program carries out, in the order of LaneKind.
template <typename Use>
void ForEachLaneKindOf(LaneOwner owner, Use&& use) {
  for (int kind = 0; kind < kLaneKinds; ++kind) {
    if (TraitsOf(static_cast<LaneKind>(kind)).owner == owner) use(static_cast<LaneKind>(kind));
  }
}

// One number for each link, by the lane's link: of a row of rates, say.
template <typename T>
constexpr const T& OfLink(LaneLink link, const T& h2d, const T& d2h, const T& p2p) {
  return link == LaneLink::kP2P ? p2p : link == LaneLink::kD2H ? d2h : h2d;
}

}  // namespace harmony::command
