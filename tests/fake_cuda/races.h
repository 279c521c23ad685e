#pragma once

// The race detector: whether each access of memory comes after those that it conflicts with, by
// vector clocks (Fidge, Mattern; 1988). Those who access are streams, and threads or processes as
// the CPU's. What orders them: enqueueing (CPU before stream), a successful wait or query (stream
// before CPU), and hooks.h's release and acquire. An access of a stream is judged when it is
// enqueued, so what is found does not depend on when it runs. Finding a race ends the process.
//
// Clocks live in this process; accesses, keys and the numbers of those who access are in a store,
// which is a file where processes share it. Under State::mutex.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace harmony::fake_cuda {

inline constexpr int kMaxActors = 256;

struct Clock {
  std::array<uint64_t, kMaxActors> at = {};
  void Join(const Clock& other);
};

// A stream, a thread or a process, with what it knows of the others.
class Actor {
 public:
  Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  ~Actor();  // Any thread, without State::mutex, too.

  // Before all else; nothing after the first time. `name`: "stream 3".
  void Enter(absl::string_view name);
  void Tick();

  int number = -1;  // In the store, where no other has it at the same time.
  std::string name;
  bool is_stream = false;
  Clock clock;
};

struct Operation;
struct Stream;

// `shared`: the file of the store, empty: this process has its own. Once it is chosen, the process
// stays with it.
void StartRaceDetector(const std::string& shared);

void NoteEnqueued(Stream& stream, const Operation& operation);
// The caller has seen that all which `clock` stands for is done.
void NoteSeen(const Clock& clock);
void NoteCpuAccess(const void* begin, size_t bytes, bool write, absl::string_view what);
// The memory is about to be unmapped or unregistered here: own streams must be known to be done.
void NoteTakenAway(const void* begin, size_t bytes, absl::string_view what);
void NoteReleased(uint64_t key);
void NoteAcquired(uint64_t key);

}  // namespace harmony::fake_cuda
