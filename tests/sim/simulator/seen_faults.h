#pragma once

// What faults came to in a simulation, so that tests can see that they have seen it. PURE.

#include <array>
#include <cstddef>
#include <cstdint>

namespace harmony::sim {

enum class Seen : uint8_t {
  kDeath,
  kCoordinatorDeath,
  kDeathInSetUp,
  kWentOn,  // after a stop
  kCoordinatorWentOn,
  kKilledAsHung,  // by the launcher
  kCoordinatorKilledAsHung,
  kKilledAsHungWithoutCoordinator,  // nobody else would have noticed
  kPastDeadline,                    // killed for it by the coordinator
  kBrokenStream,
  kDialledBeforeLossWasSeen,
  kRefusedCommand,
  kRefusedSetUp,
  kFailedCommand,
  kStaleStart,  // a command began though its generation was over
};
inline constexpr int kSeenKinds = static_cast<int>(Seen::kStaleStart) + 1;

constexpr const char* NameOf(Seen seen) {
  constexpr std::array<const char*, kSeenKinds> kNames = {
      "deaths",
      "deaths of the coordinator",
      "deaths in set-up",
      "stops that ended",
      "stops of the coordinator that ended",
      "hung and killed",
      "coordinators hung and killed",
      "hung and killed without a coordinator",
      "killed at deadlines",
      "broken streams",
      "streams that came back before their loss was seen",
      "commands that lacked something",
      "set-ups that lacked something",
      "commands that failed",
      "commands that began after their generation"};
  return kNames[static_cast<size_t>(seen)];
}

class SeenFaults {
 public:
  void Note(Seen seen) { ++counts_[static_cast<size_t>(seen)]; }
  void Add(const SeenFaults& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }
  int64_t operator[](Seen seen) const { return counts_[static_cast<size_t>(seen)]; }

 private:
  std::array<int64_t, kSeenKinds> counts_{};
};

}  // namespace harmony::sim
