#pragma once

// When the work of some training steps runs: operations on the lanes of a machine, under the rule
// of our own dry run (common/plan/lane_resources.h): an operation starts when the one before it on
// its lane (Queue::kInOrder) and all that it comes after have ended and the resource of its lane is
// free, and resources serve in the order in which operations are ready (of one moment: in the order
// in which they were added). PURE.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/units.h"
#include "common/command/command.h"
#include "common/plan/lane_resources.h"

namespace harmony::baselines {

// The number of an operation.
using Operation = int32_t;
inline constexpr Operation kNoOperation = -1;

// Whether an operation waits for those before it on its lane. What has a stream of its own, as
// gathers of weights have beside reductions of gradients, does not.
enum class Queue : uint8_t { kInOrder, kOwn };

// What a copy carries.
enum class Traffic : uint8_t {
  kWeights,
  kGradients,
  kOptimizerState,  // moments and master weights
  kActivations,     // and their gradients: stashes, what autograd saved, boundaries
  kInputs,          // the batch
};
inline constexpr int kTrafficClasses = static_cast<int>(Traffic::kInputs) + 1;
const char* ToString(Traffic traffic);

// Bytes of one step, by class.
struct StepBytes {
  std::array<int64_t, kTrafficClasses> h2d{}, d2h{};  // over the links to the host
  std::array<int64_t, kTrafficClasses> p2p{};         // device to device

  int64_t host_links() const;  // both directions, all classes
  int64_t of(Traffic traffic) const;
  int64_t peer() const;
};

class Timeline {
 public:
  Timeline(int num_devices, plan::LaneResources resources);

  // What is added from now on belongs to this step, counted from 0.
  void BeginStep();
  // After: operations added before; kNoOperation counts as none.
  Operation Add(command::Lane lane, Nanos duration, absl::Span<const Operation> after,
                Queue queue = Queue::kInOrder);
  // The same of a copy: its bytes are counted for the step.
  Operation AddCopy(command::Lane lane, Nanos duration, Bytes size, Traffic traffic,
                    absl::Span<const Operation> after, Queue queue = Queue::kInOrder);

  int num_operations() const { return static_cast<int>(lane_.size()); }
  // Of an operation: its lane's LaneTable index, the step that it belongs to, how long it takes,
  // and the operations that it comes after.
  int LaneOf(Operation operation) const { return lane_[static_cast<size_t>(operation)]; }
  int StepOf(Operation operation) const { return step_[static_cast<size_t>(operation)]; }
  Nanos DurationOf(Operation operation) const { return duration_[static_cast<size_t>(operation)]; }
  absl::Span<const Operation> WaitsOf(Operation operation) const;
  int num_steps() const { return static_cast<int>(step_end_.size()); }

  // Gives all operations their times; nothing is added afterwards.
  void Run();
  Nanos EndOf(Operation operation) const { return end_[static_cast<size_t>(operation)]; }
  // When the last operation of a step ends.
  Nanos StepEnd(int step) const { return step_end_[static_cast<size_t>(step)]; }
  const StepBytes& BytesOf(int step) const { return bytes_[static_cast<size_t>(step)]; }
  // How long each lane is busy in a step, by LaneTable index.
  const std::vector<Nanos>& BusyOf(int step) const { return busy_[static_cast<size_t>(step)]; }
  const plan::LaneResources& resources() const { return resources_; }
  const command::LaneTable& lanes() const { return lanes_; }

 private:
  // Operations that come after each one, and how many each one waits for.
  struct Order {
    std::vector<size_t> first;  // into `successors`, by operation
    std::vector<Operation> successors;
    std::vector<int> waits;
  };
  Order MakeOrder() const;

  const command::LaneTable lanes_;
  const plan::LaneResources resources_;
  std::vector<Operation> last_of_lane_;
  // By operation.
  std::vector<int> lane_, step_;
  std::vector<Nanos> duration_, end_;
  std::vector<size_t> first_wait_;  // into `waits_`
  std::vector<Operation> waits_;
  // By step.
  std::vector<Nanos> step_end_;
  std::vector<StepBytes> bytes_;
  std::vector<std::vector<Nanos>> busy_;
};

}  // namespace harmony::baselines
