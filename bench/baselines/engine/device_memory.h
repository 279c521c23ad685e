#pragma once

// One device whose memory is a cache of the host's: a task's tensors are brought in before it, room
// is made by evicting the least recently used ones, of which dirty ones are written back and clean
// ones dropped. What is decided depends on the order of the tasks alone, so that bytes are exact
// whatever the times; the copies become operations of a timeline.
//
// Simplifications in favour of whoever is modelled by it: memory does not fragment; a write back
// overlaps with computing; whole tensors move, at the full speed of the link. A system that writes
// back ahead knows what will be evicted: it writes that alone, in that order, as soon as it is made
// and the link is idle, so that the bytes are the same. Systems that predict it write some tensors
// in vain, or too late.
//
// Where a task's own tensors do not fit together, the device goes on as if it were larger and
// remembers how much was missing at most (`shortage`). PURE.

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "bench/baselines/engine/layer_costs.h"
#include "bench/baselines/engine/recording.h"
#include "bench/baselines/engine/timeline.h"

namespace harmony::baselines {

// One of equal parts, the largest where they are not quite equal.
inline Bytes PartOf(Bytes whole, int parts) { return Bytes((whole.count() + parts - 1) / parts); }

struct TensorTraits {
  Bytes size = {};
  Traffic traffic = Traffic::kActivations;
  bool on_host = false;   // it exists already, and lies in host memory
  bool evictable = true;  // may leave the device, where there is room for it on the host
  // It is brought in as so many equal parts: one over the device's own link to the host, the others
  // from the other devices, which each have theirs.
  int shards = 1;
  // Its own of these parts lies on the device, and not on the host; kNoTensor: it does not.
  Tensor own_share = kNoTensor;
};

struct DeviceTask {
  std::string what = {};  // "backward of layer 3", for messages
  command::LaneKind lane = command::LaneKind::kCompute;
  Nanos duration = {};
  std::vector<Tensor> reads = {};
  std::vector<Tensor> writes = {};   // brought in, and dirty afterwards
  std::vector<Tensor> creates = {};  // room only; exists and is dirty afterwards
  std::vector<Tensor> frees = {};    // ceases to exist with the task's end; one of the above
  Bytes scratch = {};
  std::vector<Operation> after = {};
  // Of a copy between devices, on its lane: what is counted.
  Bytes moved = {};
  Traffic traffic = Traffic::kGradients;
  Work work = {};  // what is recorded
};

// A task whose tensors do not fit together.
struct Shortage {
  std::string what;
  Bytes needed, capacity;  // what the task and all that may not be evicted take
  Bytes missing() const { return needed - capacity; }
};

struct Paging {
  // A task's tensors may be brought in while so many tasks before it still run; 0: on demand.
  int lookahead = 1;
  // What will be evicted dirty is written back before room is needed: to evict it then is free.
  bool writes_back_ahead = false;
  // Memory is given out in multiples of so many bytes, a power of two; what moves are a tensor's
  // own.
  int64_t page = 1;
};

class DeviceMemory {
 public:
  // `costs`, `timeline` and `recording` must outlive it. `recording`: what is decided is noted
  // there, the devices made in their order; null: nowhere. A schedule that lacks memory, or whose
  // tensors come in shards, cannot be carried out from it.
  DeviceMemory(const LayerCosts& costs, int device, Bytes capacity, const Paging& paging,
               Timeline* timeline, Recording* recording = nullptr);

  Tensor Add(const TensorTraits& traits);
  // Runs the task; its operation.
  Operation Run(const DeviceTask& task);
  // The tensor ceases to exist when the operation has ended.
  void Free(Tensor tensor, Operation after);
  // Its room is given up when the operation has ended; its copy on the host stays. REQUIRES: it is
  // clean.
  void Drop(Tensor tensor, Operation after);
  // The operation makes it anew on the host; what the device has is of no use any more.
  void ReplaceOnHost(Tensor tensor, Operation by);
  // A copy from host to device into its place, in no order with others. REQUIRES: it is resident.
  Operation RefreshFromHost(Tensor tensor, Operation after);
  // The operation, which is not the device's own, reads the tensor.
  void UsedBy(Tensor tensor, Operation operation);
  bool resident(Tensor tensor) const { return at(tensor).resident; }
  bool exists(Tensor tensor) const { return at(tensor).resident || at(tensor).on_host; }

  int device() const { return device_; }
  Bytes peak() const { return peak_; }
  Bytes host_peak() const { return host_peak_; }  // of what was evicted
  const std::optional<Shortage>& shortage() const { return shortage_; }

 private:
  struct State {
    TensorTraits traits;
    Bytes room;  // that it takes
    Stay stay = kNoStay;
    bool resident = false;
    bool on_host = false;  // a valid copy
    bool evicted = false;  // that copy counts as the host's memory taken by eviction
    bool pinned = false;
    Operation ready = kNoOperation;       // made the copy on the device
    Operation host_ready = kNoOperation;  // made the copy on the host
    std::array<Operation, 2> last_use = {kNoOperation, kNoOperation};  // on compute; elsewhere
    std::list<Tensor>::iterator place;  // in `recent_`; evictable and resident ones
  };
  struct Room {
    Bytes size;
    std::array<Operation, 3> after;
  };
  State& at(Tensor tensor) { return tensors_[static_cast<size_t>(tensor)]; }
  const State& at(Tensor tensor) const { return tensors_[static_cast<size_t>(tensor)]; }

  Bytes InPages(Bytes size) const { return size.AlignUp(paging_.page); }
  void CheckFits(const DeviceTask& task);
  // Takes room; what has to end first is added to `after`.
  void Take(Bytes size, std::vector<Operation>* after);
  void GiveBack(Bytes size, Stay stay, std::array<Operation, 3> after);
  Stay NewStay(Bytes size) { return recording_ ? recording_->Take(device_, size) : kNoStay; }
  bool EvictOne();
  void Enter(Tensor tensor);
  void Leave(Tensor tensor, std::array<Operation, 3> after);
  void BringIn(Tensor tensor, const std::vector<Operation>& room);
  Operation CopyIn(Tensor tensor, const std::vector<Operation>& after,
                   Queue queue = Queue::kInOrder);
  Operation Gather(Tensor tensor, Bytes others, std::vector<Operation> after);
  void Touch(Tensor tensor, bool dirty, Operation operation, bool compute);
  // The operation with whose end the task that comes next may begin to make itself room.
  Operation Trigger() const;
  void Forget(State& state);
  void RecordCopy(Action::Kind kind, Tensor tensor, Operation operation);
  // Before the task's tensors are touched or freed.
  void RecordTask(const DeviceTask& task, Stay scratch, Operation operation);

  const LayerCosts& costs_;
  const int device_;
  const Bytes capacity_;
  const Paging paging_;
  Timeline& timeline_;
  Recording* const recording_;
  std::vector<State> tensors_;
  std::list<Tensor> recent_;  // evictable and resident, the least recently used first
  std::deque<Room> free_;     // in the order in which it becomes free
  Bytes free_bytes_, fixed_;  // fixed: of resident tensors that are not evictable
  Bytes used_, peak_, evicted_, host_peak_;
  std::deque<Operation> computed_;  // the last lookahead + 1 tasks
  std::optional<Shortage> shortage_;
};

}  // namespace harmony::baselines
