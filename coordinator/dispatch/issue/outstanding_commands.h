#pragma once

// The commands of each lane that have been issued and have not completed.
//
// Owner: Generation. Single-threaded. Invariant: a lane's k-th command signals k, and commands
// complete in order. PURE.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "common/command/command.h"

namespace harmony::dispatch {

class OutstandingCommands {
 public:
  explicit OutstandingCommands(int num_lanes) : lanes_(static_cast<size_t>(num_lanes)) {}

  uint64_t issued(int lane) const { return at(lane).issued; }
  uint64_t completed(int lane) const { return at(lane).completed; }
  uint64_t outstanding(int lane) const { return issued(lane) - completed(lane); }
  bool none() const {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& lane) { return lane.completed == lane.issued; });
  }

  void Add(int lane, command::Command command) {
    ++at(lane).issued;
    at(lane).commands.push_back(std::move(command));
  }
  // All up to `value` have completed: calls `done` with each, in order.
  template <typename Done>
  void Complete(int index, uint64_t value, Done&& done) {
    Lane& lane = at(index);
    for (value = std::min(value, lane.issued); lane.completed < value; ++lane.completed) {
      done(lane.commands.front());
      lane.commands.pop_front();
    }
  }
  // A command that nobody will ask for was issued, and has completed.
  void Pass(int lane) { at(lane).completed = ++at(lane).issued; }
  // Null when it is not outstanding.
  const command::Command* Find(int index, uint64_t value) const {
    const Lane& lane = at(index);
    if (value <= lane.completed || value > lane.issued) return nullptr;
    return &lane.commands[value - lane.completed - 1];
  }

 private:
  struct Lane {
    uint64_t issued = 0, completed = 0;
    std::deque<command::Command> commands;
  };
  Lane& at(int lane) { return lanes_[static_cast<size_t>(lane)]; }
  const Lane& at(int lane) const { return lanes_[static_cast<size_t>(lane)]; }

  std::vector<Lane> lanes_;
};

}  // namespace harmony::dispatch
