#pragma once

// A simulated process, and what is on its way between it and the coordinator. PURE.

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/runner/job_runner.h"

namespace harmony::sim {

struct SimMessage {
  int process = -1;  // -1: the coordinator's own (records)
  uint32_t incarnation = 0, epoch = 0;
  std::optional<runner::Event> event;  // to the coordinator
  enum class To : uint8_t { kQuiesce, kStart, kCommands } to = To::kStart;
  uint32_t generation = 0;
  std::vector<command::Command> commands;
};

struct SimProcess {
  runner::ProcessId id;
  bool alive = true;
  bool hung = false;
  bool connected = false;
  bool wants_dial = false;
  uint32_t incarnation = 1, epoch = 0;  // of the coordinator it talks to
  uint32_t attached_incarnation = 0;    // whose stream the coordinator knows
  uint32_t quiesce = 0;                 // generation to answer for, when quiet
  std::vector<int> lanes;
  Nanos last_up, last_down;  // streams are ordered
};

}  // namespace harmony::sim
