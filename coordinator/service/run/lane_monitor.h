#pragma once

// What ran when on each lane, and what it moved: from commands issued and completions reported.
// Feeds the progress view, the byte counters of metrics.jsonl and the timeline. No clock of its
// own.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/units.h"
#include "common/command/command.h"
#include "common/plan/plan.h"

namespace harmony::service {

inline constexpr int kNumTrafficClasses = static_cast<int>(command::TrafficClass::kRecovery) + 1;
// Bytes by TrafficClass.
using SwapTotals = std::array<int64_t, kNumTrafficClasses>;

// What is kept of a command once it has been sent.
struct CommandLabel {
  enum class Body : uint8_t { kCompute, kTransfer, kHost };
  Body body = Body::kCompute;
  uint8_t kind = 0;        // TaskKind, TrafficClass or HostTaskKind
  int first = 0;           // first layer; source device; block
  int last = 0;            // last layer; destination device
  int microbatch = 0;      // of a compute task, as ComputeTask counts
  int64_t samples = 0;     // of a compute task
  bool may_stall = false;  // likewise: it waits for gradients to leave, or to come, on its way
  int64_t bytes = 0;       // of a transfer
  int64_t step = 0;        // index, from 0
};
CommandLabel LabelOf(const command::Command& command);
// "backward layers 3-5, microbatch 2 of 8", "forward layers 3-5, microbatches 3-4 of 8"; the step
// is not named.
std::string Describe(const CommandLabel& label, const plan::Plan& plan);

// A command that has completed.
struct MeasuredCommand {
  CommandLabel label;
  Nanos issued, received, start, end;
  Nanos expected;      // as modelled; 0: unknown
  Nanos wait;          // between the end of the lane's previous command and this one's start
  Nanos command_wait;  // of that: the process did not have the command yet
  uint32_t generation = 0;
};

// Times since the monitor was made; differences of two readings give shares and rates.
struct LaneUsage {
  Nanos busy;         // commands were running
  Nanos outstanding;  // commands were out, running or waiting
  Nanos starved;      // of the time between commands: the process did not have the next one yet
  int64_t bytes = 0;  // moved
};

struct ReportedTiming {
  uint64_t value = 0;
  Nanos received, start, end;
};

// Owner: JobRun; one thread.
class LaneMonitor {
 public:
  LaneMonitor(int num_devices, size_t timeline_entries_per_lane);

  // Forgets what is outstanding: it did not complete, or nobody will ever know.
  void BeginGeneration(uint32_t generation, Nanos now);
  // `expected`: what the model says that it takes.
  void OnIssued(const command::Command& command, Nanos expected, Nanos now);
  // All commands of the lane up to `value` have completed.
  void OnProgress(int lane, uint64_t value, absl::Span<const ReportedTiming> timings, Nanos now);

  // Bytes of a step that has completed, its transfers that are not reported yet included (they are
  // complete all the same). Forgets the step.
  SwapTotals TakeStep(int64_t step);
  // When the last update of a completed step ended; nothing: none is kept.
  std::optional<Nanos> EndOfStep(int64_t step) const;
  const SwapTotals& total() const { return total_; }

  LaneUsage Usage(int lane, Nanos now) const;
  // The oldest command that is out; null when there is none.
  const CommandLabel* Head(int lane) const;
  // Those that it begins after. REQUIRES: Head(lane) is not null.
  const std::vector<command::SemaphoreWait>& HeadWaits(int lane) const;
  const std::deque<MeasuredCommand>& Timeline(int lane) const { return lanes_[lane].timeline; }
  // Of this step and later ones every command that was reported is in the timelines.
  int64_t first_whole_step() const { return first_whole_step_; }
  // Of steps before this one nothing is outstanding. A step may have completed (its updates have)
  // before the last of its transfers is reported: by another process, over another stream.
  int64_t FirstOutstandingStep() const;
  int num_lanes() const { return static_cast<int>(lanes_.size()); }
  const command::LaneTable& table() const { return table_; }

 private:
  struct Outstanding {
    uint64_t value = 0;
    CommandLabel label;
    std::vector<command::SemaphoreWait> waits;
    Nanos issued, expected;
    bool counted = false;
  };
  struct LaneState {
    std::deque<Outstanding> outstanding;
    std::deque<MeasuredCommand> timeline;
    LaneUsage usage;
    Nanos outstanding_since;
    Nanos last_end;
  };
  void Count(LaneState& lane, Outstanding& command);

  command::LaneTable table_;
  size_t capacity_;
  uint32_t generation_ = 0;
  int64_t first_whole_step_ = 0;
  std::vector<LaneState> lanes_;
  SwapTotals total_ = {};
  std::map<int64_t, SwapTotals> by_step_;
};

}  // namespace harmony::service
