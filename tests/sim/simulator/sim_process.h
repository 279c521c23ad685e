#pragma once

// A simulated process, what is on its way between it and the coordinator, and what happens to both.
// PURE.

#include <cstdint>
#include <optional>
#include <vector>

#include "common/command/command.h"
#include "coordinator/runner/job_runner.h"

namespace harmony::sim {

struct Happening {
  enum class Kind : uint8_t {
    kToCoordinator,  // a: message
    kToProcess,      // a: message
    kLaneDone,       // a: lane, b: stamp
    kKill,           // a: process, b: incarnation; somebody has sent a SIGKILL
    kRespawn,        // a: process
    kBroken,         // a: process, b: session; it sees that its stream is broken
    kSetUp,          // a: process, b: session; it has set the job up, or cannot
    kTellJob,        // a: process, b: session; the coordinator tells it the job once more
    kGoOn,           // a: process, or -1: the coordinator; b: stop; SIGCONT
    kHangs,          // likewise; the launcher has seen no heartbeat for long, and kills it
    kRestart,        // the coordinator
    kTick,
    kTryNow,  // what was missing is there, and somebody says so
    kStopRequest,
  };
  Kind kind;
  int64_t a = 0;
  uint64_t b = 0;
};

struct SimMessage {
  int process = -1;      // -1: the coordinator's own (records)
  uint64_t session = 0;  // of the stream
  uint32_t epoch = 0;    // of the coordinator that it is to, or from
  // To the coordinator: an event for its runner, or about the stream.
  std::optional<runner::Event> event;
  enum class What : uint8_t {
    kEvent,
    kHello,
    kJobReady,
    kJobRefused,
    kClosed,
    // To a process.
    kJob,
    kQuiesce,
    kStart,
    kCommands,
  } what = What::kEvent;
  uint32_t incarnation = 0;
  uint32_t generation = 0;
  std::vector<command::Command> commands;
};

// What is stopped (SIGSTOP): the happenings that it comes to when it goes on.
struct Stopped {
  bool now = false;
  uint64_t number = 0;  // of stops; tells one from another
  Nanos since;
  std::vector<Happening> postponed;
};

struct SimProcess {
  runner::ProcessId id;
  bool alive = true;
  bool connected = false;
  bool wants_dial = false;
  bool setting_up = false;
  uint32_t incarnation = 1;
  uint64_t session = 0;  // of its stream; when connected
  uint32_t quiesce = 0;  // generation to answer for, when quiet
  std::vector<int> lanes;
  Nanos last_up, last_down;  // streams are ordered
  Stopped stopped;
};

}  // namespace harmony::sim
