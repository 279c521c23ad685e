#pragma once

// Where the race detector keeps what the processes of one test know in common: plain data, mapped
// from a file that they share or owned by one of them.

#include <pthread.h>

#include <cstdint>
#include <string>

#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/races.h"

namespace harmony::fake_cuda {

inline constexpr int kMaxAccesses = 16384;
inline constexpr int kMaxKeys = 4096;

struct ActorRow {
  int32_t pid = 0;     // 0: free.
  uint64_t epoch = 0;  // Goes on where a number is used again.
};

struct Access {
  Place place;
  uint64_t address = 0;  // In the process that accessed it.
  uint64_t epoch = 0;
  int32_t actor = 0;
  int32_t pid = 0;
  bool write = false;
  bool stream = false;
  int64_t nanos = 0;
  char who[40] = {};
  char what[40] = {};
};

struct KeyRow {
  uint64_t key = 0;
  Clock clock;
};

// Lives in zeroed memory; no constructor runs.
struct RaceStore {
  uint64_t version;
  pthread_mutex_t mutex;
  int32_t next_actor;
  ActorRow actors[kMaxActors];
  int32_t accesses;  // How many there are.
  int32_t oldest;    // The next to make place when all places are taken.
  Access access[kMaxAccesses];
  int32_t keys;
  KeyRow key[kMaxKeys];
};

// Never closed. A file that is no store of this version ends the process.
RaceStore* OpenRaceStore(const std::string& path);

// The lock of the store; a process that dies while it holds it leaves it to the next.
class RaceStoreLock {
 public:
  explicit RaceStoreLock(RaceStore& store);
  ~RaceStoreLock() { pthread_mutex_unlock(&store_.mutex); }
  RaceStoreLock(const RaceStoreLock&) = delete;
  RaceStoreLock& operator=(const RaceStoreLock&) = delete;

 private:
  RaceStore& store_;
};

// Of a process that has ended, nothing is under way any more.
bool HasEnded(int pid);

}  // namespace harmony::fake_cuda
