#pragma once

// What is going to happen in a simulation, and when: a virtual clock, and the streams between
// processes and the coordinator, each of which keeps its order. PURE.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/random.h"
#include "tests/sim/simulator/event_queue.h"
#include "tests/sim/simulator/sim_process.h"

namespace harmony::sim {

class SimPost {
 public:
  // `random` must outlive it. A message takes up to `longest_delay` at random; when that is none,
  // always the same.
  SimPost(Nanos longest_delay, CounterRandom& random)
      : longest_delay_(longest_delay), random_(random) {}

  Nanos now() const { return now_; }
  Nanos Delay() {
    if (longest_delay_ == Nanos()) return Nanos(1000);
    return Nanos(static_cast<int64_t>(random_.Below(longest_delay_.count()) + 1));
  }

  void Schedule(Nanos at, Happening::Kind kind, int64_t a = 0, uint64_t b = 0) {
    events_.Add(at, {kind, a, b});
  }
  void ScheduleIn(Nanos pause, Happening::Kind kind, int64_t a = 0, uint64_t b = 0) {
    Schedule(now_ + pause, kind, a, b);
  }
  // A process to the coordinator, or (`down`) the other way, behind all that was sent before.
  void Send(SimProcess& process, bool down, SimMessage message) {
    Nanos& last = down ? process.last_down : process.last_up;
    last = std::max(now_ + Delay(), last + Nanos(1));
    const auto whose = static_cast<uint64_t>(message.process);
    Schedule(last, down ? Happening::Kind::kToProcess : Happening::Kind::kToCoordinator,
             messages_.Keep(std::move(message)), whose);
  }
  // That the stream is broken, to the coordinator: what the process sends by another one may be
  // there before.
  void SendLoss(const SimProcess& process, SimMessage message) {
    Schedule(std::max(now_ + Delay(), process.last_up + Nanos(1)), Happening::Kind::kToCoordinator,
             messages_.Keep(std::move(message)));
  }
  // The coordinator to itself.
  void SendSelf(Nanos pause, SimMessage message) {
    ScheduleIn(pause, Happening::Kind::kToCoordinator, messages_.Keep(std::move(message)));
  }
  SimMessage Take(int64_t message) { return messages_.Take(message); }

  bool empty() const { return events_.empty(); }
  // Nothing else happens now.
  bool IsEndOfMoment() const { return events_.empty() || events_.next() != now_; }
  Happening TakeNext() {  // REQUIRES: !empty()
    auto [at, order, event] = events_.TakeNext();
    now_ = at;
    return event;
  }

 private:
  const Nanos longest_delay_;
  CounterRandom& random_;
  Nanos now_;
  EventQueue<Happening> events_;
  Pool<SimMessage> messages_;
};

}  // namespace harmony::sim
