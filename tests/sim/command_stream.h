#pragma once

// All that one generation without faults is made of, in the order of issue, and which of its
// commands touch the same bytes or records. PURE.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tests/sim/command_orders.h"
#include "tests/sim/random_case.h"

namespace harmony::sim {

struct CommandStream {
  RandomCase job;
  absl::Status status;  // of the run that the commands are from
  std::vector<command::Command> commands;
  std::vector<Conflict> conflicts;
  int lanes = 0;
};

// Half of them with fewer boundary banks than planners give, so that small models use each several
// times.
RandomCase MakeCaseWithoutFaults(uint64_t seed);
CommandStream MakeCommandStream(uint64_t seed);

}  // namespace harmony::sim
