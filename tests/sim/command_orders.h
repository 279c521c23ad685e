#pragma once

// Which orders a stream of commands makes by itself, whatever the timing, and which bytes and
// records each command touches: two that touch the same, one of them to write, have to be ordered.
// PURE.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/command/command.h"
#include "common/model/model_spec.h"
#include "common/plan/plan.h"

namespace harmony::sim {

// What a command reads or writes.
struct Access {
  enum Memory { kRecords = -2, kArena = -1 };  // from 0 on: a device
  int memory = kArena;
  Bytes begin, size;  // of records: their numbers
  bool write = false;
  bool frees = false;  // a write that only sets a record free: two of these need no order
  // The command does not touch it before this: a wait on its way.
  std::optional<command::SemaphoreWait> after = std::nullopt;
};

// By command, of a stream in the order of issue that begins with nothing committed.
std::vector<std::vector<Access>> AccessesOf(const model::ModelSpec& model, const plan::Plan& plan,
                                            const std::vector<command::Command>& commands);

struct Conflict {
  size_t earlier, later;  // numbers of commands
  // The later one touches what both do only after this.
  std::optional<command::SemaphoreWait> after;
};
std::vector<Conflict> ConflictsOf(const std::vector<std::vector<Access>>& accesses);

// The orders that lanes and waits make.
class CommandOrders {
 public:
  // `commands` outlives it.
  CommandOrders(const std::vector<command::Command>& commands, int lanes);

  bool Before(const Conflict& conflict) const;
  // Whether the command's lane and its other waits, but for those on its way, say what this wait
  // says.
  bool Implied(size_t command, size_t wait) const;
  // The same of a wait on its way: what the command begins after says it.
  bool ImpliedAtStart(size_t command, const command::SemaphoreWait& wait) const {
    return at_start_[command][wait.semaphore] >= wait.value;
  }

 private:
  using Known = std::vector<uint64_t>;  // by lane: the value it has reached
  Known KnownAtStart(size_t command, std::optional<size_t> without) const;
  void Join(const command::SemaphoreWait& wait, Known& known) const;

  const std::vector<command::Command>& commands_;
  std::vector<std::vector<size_t>> of_lane_;  // commands, by lane and value
  std::vector<Known> at_start_, at_end_;      // by command
};

std::optional<Conflict> FindUnordered(const std::vector<command::Command>& commands, int lanes,
                                      const std::vector<Conflict>& conflicts);

}  // namespace harmony::sim
