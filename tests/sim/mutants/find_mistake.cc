// Looks for a mistake as schedules_test and orders_test do, seed by seed, until it finds one.
// Linked with a changed source (mutants.py) it has to find one: exit code 0. Linked with none
// (`--survives`) it has to find none.
//
//   build/tests/mutants/NAME                      # says which seed finds it, and what is seen
//   build/tests/mutants/NAME --first_seed=S --seeds=1

#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/command_stream.h"
#include "tests/support/arguments.h"

namespace harmony::sim {
namespace {

uint64_t first_seed = 1;
uint64_t seeds = 20'000;
bool survives = false;

std::optional<std::string> WhatScheduleFinds(uint64_t seed) {
  RandomCase job = MakeRandomCase(seed);
  job.options.check_derivable = seed % 64 == 0;
  const SimResult result = Simulate(job.model, job.plan, *job.costs, job.options);
  if (result.status.ok()) return std::nullopt;
  return absl::StrCat("schedule of seed ", seed, ": ", result.status.ToString());
}

std::optional<std::string> WhatOrdersFind(uint64_t seed) {
  const CommandStream stream = MakeCommandStream(seed);
  if (!stream.status.ok()) return std::nullopt;  // what a schedule finds
  const auto found = FindUnordered(stream.commands, stream.lanes, stream.conflicts);
  if (!found) return std::nullopt;
  return absl::StrCat("orders of seed ", seed, ": ", DebugString(stream.commands[found->later]),
                      " is not ordered after ", DebugString(stream.commands[found->earlier]));
}

int Main() {
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    std::optional<std::string> found = WhatScheduleFinds(seed);
    if (!found) found = WhatOrdersFind(seed);
    if (!found) continue;
    std::printf("found by the %s\n", found->c_str());
    return survives ? 1 : 0;
  }
  std::printf("nothing was found with seeds %llu to %llu\n",
              static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(first_seed + seeds - 1));
  return survives ? 0 : 1;
}

}  // namespace
}  // namespace harmony::sim

int main(int argc, char** argv) {
  const bool understood = harmony::testing_support::ReadArguments(
      argc, argv,
      {{.name = "first_seed", .number = &harmony::sim::first_seed},
       {.name = "seeds", .number = &harmony::sim::seeds},
       {.name = "survives", .on = &harmony::sim::survives}});
  return understood ? harmony::sim::Main() : 2;
}
