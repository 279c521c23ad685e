#include "tests/sim/command_stream.h"

#include <algorithm>

#include "common/plan/arena_layout.h"

namespace harmony::sim {

RandomCase MakeCaseWithoutFaults(uint64_t seed) {
  RandomCase job = MakeRandomCase(seed);
  if (seed % 2 == 0) {
    job.plan.boundary_banks = 2;
    job.plan.arena_dynamic = plan::ArenaLayout(job.model, job.plan).dynamic_bytes();
  }
  RemoveFaults(job.options);
  return job;
}

CommandStream MakeCommandStream(uint64_t seed) {
  CommandStream stream{
      .job = MakeCaseWithoutFaults(seed), .status = {}, .commands = {}, .conflicts = {}};
  RandomCase& job = stream.job;
  job.options.keep_timeline = true;
  const SimResult result = Simulate(job.model, job.plan, *job.costs, job.options);
  stream.status = result.status;
  for (const ExecutedCommand& entry : result.timeline) stream.commands.push_back(entry.command);
  const auto issued_before = [](const command::Command& a, const command::Command& b) {
    return a.header.id < b.header.id;
  };
  std::sort(stream.commands.begin(), stream.commands.end(), issued_before);
  stream.conflicts = ConflictsOf(AccessesOf(job.model, job.plan, stream.commands));
  stream.lanes = command::LaneTable(static_cast<int>(job.plan.devices.size())).size();
  return stream;
}

}  // namespace harmony::sim
