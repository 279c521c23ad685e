#pragma once

// The lanes of all simulated processes and the semaphores between them: which command begins, when
// it ends, what it leaves when it fails. PURE.
//
// As in real processes, a lane of a generation that is over goes on with what it has, and may begin
// what needs to wait for nothing, until its process is told or sees that nobody wants it any more.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/command/lane_queue.h"
#include "common/plan/lane_resources.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "tests/sim/simulator/sim_world.h"
#include "tests/sim/simulator/simulation.h"

namespace harmony::sim {

class SimLanes {
 public:
  // What is begun ends at a time, with a stamp for Finish.
  using Ends = std::function<void(Nanos at, int lane, uint64_t stamp)>;

  // All must outlive it. `timeline` gets what is begun when it is not null.
  SimLanes(const model::ModelSpec& model, const plan::Plan& plan, const dispatch::CostModel& costs,
           bool jitter, SimWorld& world, CounterRandom& random,
           std::vector<ExecutedCommand>* timeline, Ends ends);

  const command::LaneTable& table() const { return table_; }

  absl::Status StartGeneration(int lane, uint32_t generation) {
    return lanes_[lane].queue.Start(generation);
  }
  absl::Status Push(int lane, uint32_t generation, command::Command command);
  // What runs goes on to its end, but does not wait on its way.
  void Quiesce(int lane, Nanos now);
  bool running(int lane) const { return lanes_[lane].queue.running(); }
  // Its process is stopped, or goes on: it begins nothing meanwhile.
  void Stop(int lane, bool stopped) { lanes_[lane].stopped = stopped; }
  // Its process has died.
  void Die(int lane, Nanos now);
  // A generation's bank of semaphores. REQUIRES: no lane runs.
  void PrepareBank(uint32_t generation);

  // Begins the head of the lane if it may begin. `word`: the segment's generation.
  absl::Status TryStart(int lane, Nanos now, uint32_t word);
  // At the end of a moment: of all heads that may begin, what was issued first gets a resource
  // first.
  absl::Status StartHeads(Nanos now, uint32_t word);
  // Commands that began though their generation was over.
  int64_t stale_starts() const { return stale_starts_; }
  // Heads may have become able to begin.
  bool signalled() const { return signalled_; }
  void Signal() { signalled_ = true; }

  // The command that the lane runs, if the stamp is still its own; else null.
  const command::Command* Ending(int lane, uint64_t stamp) const;
  uint32_t GenerationOf(int lane) const { return lanes_[lane].queue.generation(); }
  bool quiesced(int lane) const { return lanes_[lane].queue.quiesced(); }
  // It has completed: its value, or 0 when nobody wants it any more.
  absl::StatusOr<uint64_t> Complete(int lane);
  // It has failed, and stops its lane.
  void Fail(int lane);

 private:
  struct Lane {
    explicit Lane(int lane) : queue(lane) {}
    command::LaneQueue queue;
    uint64_t semaphore = 0;  // of the bank
    uint64_t stamp = 0;      // of what runs
    // Of a task that runs: how many of its gradient_waits are not over, how long it waited for the
    // others, and when it ends but for that.
    size_t gradient_waits = 0;
    std::optional<model::GradientStall> stall;
    Nanos end;
    size_t entry = 0;  // of it in the timeline
    bool stopped = false;
  };

  // A task that runs has come as far as its gradient_waits let it.
  absl::Status GoOn(int lane, Nanos now);

  const model::ModelSpec& model_;
  const model::GradientTimes gradient_times_;
  const dispatch::CostModel& costs_;
  const bool jitter_;
  SimWorld& world_;
  CounterRandom& random_;
  std::vector<ExecutedCommand>* const timeline_;
  const Ends ends_;
  const command::LaneTable table_;
  std::vector<Lane> lanes_;
  uint32_t bank_ = 0;  // the generation that the semaphores are of
  plan::ResourceClock resources_;
  bool signalled_ = false;
  int64_t stale_starts_ = 0;
};

}  // namespace harmony::sim
