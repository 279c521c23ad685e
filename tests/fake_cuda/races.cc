#include "tests/fake_cuda/races.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/race_store.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

// Both are set once.
RaceStore* store = nullptr;
std::string* store_path = nullptr;

bool Off() { return TheState().config.races == Races::kOff; }

int64_t NanosNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// The CPU as one who accesses: the calling thread, or this process.
Actor& Cpu() {
  if (TheState().config.races == Races::kProcesses) {
    static Actor* const process = new Actor;
    process->Enter("CPU");
    return *process;
  }
  thread_local Actor thread;
  if (thread.number < 0) thread.Enter(absl::StrCat("thread ", gettid()));
  return thread;
}

// What somebody is about to do with some memory.
struct Intent {
  Actor& actor;
  const void* begin = nullptr;
  bool write = false;
  bool take_away = false;  // Concerns own streams at this address only, and leaves no trace.
  absl::string_view what;
};

bool Overlap(const Place& a, const Place& b) {
  return a.device == b.device && a.inode == b.inode && a.begin < b.end && b.begin < a.end;
}

bool Covers(const Place& whole, const Place& part) {
  return whole.begin <= part.begin && part.end <= whole.end;
}

// `address`: where the intent has `place`.
bool Conflict(const Intent& intent, const Place& place, uint64_t address, const Access& earlier) {
  if (intent.take_away) {
    return earlier.stream && earlier.pid == getpid() &&
           earlier.address - earlier.place.begin == address - place.begin;
  }
  return intent.write || earlier.write;
}

[[noreturn]] void Report(const Intent& intent, const Place& place, const Access& earlier) {
  const char* const does =
      intent.take_away ? "takes memory away" : (intent.write ? "writes" : "reads");
  Die(absl::StrCat("race: ", intent.what, " (", intent.actor.name, " of process ", getpid(), ") ",
                   does, " at 0x", absl::Hex(place.begin), "-0x", absl::Hex(place.end), " of ",
                   place.device == kOwnMemory ? "own memory" : "file ", place.inode,
                   " and is not ordered after ", earlier.what, " (", earlier.who, ") which ",
                   earlier.write ? "writes" : "reads", " 0x", absl::Hex(earlier.place.begin), "-0x",
                   absl::Hex(earlier.place.end), ", ", (NanosNow() - earlier.nanos) / 1000,
                   " us ago"));
}

Access Describe(const Intent& intent, const Place& place, uint64_t address) {
  Access access;
  access.place = place;
  access.address = address;
  access.epoch = intent.actor.clock.at[intent.actor.number];
  access.actor = intent.actor.number;
  access.pid = getpid();
  access.write = intent.write;
  access.stream = intent.actor.is_stream;
  access.nanos = NanosNow();
  snprintf(access.who, sizeof(access.who), "%s of process %d", intent.actor.name.c_str(), getpid());
  snprintf(access.what, sizeof(access.what), "%.*s", static_cast<int>(intent.what.size()),
           intent.what.data());
  return access;
}

// With the lock of the store.
void Add(const Access& access) {
  if (store->accesses < kMaxAccesses) {
    store->access[store->accesses++] = access;
    return;
  }
  // Forgetting one may hide a race, and never invents one.
  store->access[store->oldest] = access;
  store->oldest = (store->oldest + 1) % kMaxAccesses;
}

void Judge(const Intent& intent, const Places& places) {
  const RaceStoreLock lock(*store);
  uint64_t address = reinterpret_cast<uint64_t>(intent.begin);
  for (const Place& place : places) {
    for (int i = 0; i < store->accesses;) {
      Access& earlier = store->access[i];
      const bool overlap = Overlap(place, earlier.place);
      const bool before = earlier.epoch <= intent.actor.clock.at[earlier.actor];
      if (overlap && !before && Conflict(intent, place, address, earlier) &&
          !HasEnded(earlier.pid)) {
        Report(intent, place, earlier);
      }
      // Whoever comes after this access comes after that one: it need not be kept.
      const bool redundant = overlap && before && Covers(place, earlier.place) &&
                             !intent.take_away && (intent.write || !earlier.write);
      if (redundant) {
        earlier = store->access[--store->accesses];
      } else {
        ++i;
      }
    }
    if (!intent.take_away) Add(Describe(intent, place, address));
    address += place.end - place.begin;
  }
}

// Own memory at the same address may be something else later.
void ForgetOwnMemory(const Places& places) {
  const RaceStoreLock lock(*store);
  for (const Place& place : places) {
    if (place.device != kOwnMemory) continue;
    for (int i = 0; i < store->accesses;) {
      if (Overlap(place, store->access[i].place)) {
        store->access[i] = store->access[--store->accesses];
      } else {
        ++i;
      }
    }
  }
}

// With the lock of the store. Null: nobody has released it.
KeyRow* FindKey(uint64_t key) {
  KeyRow* const end = store->key + store->keys;
  KeyRow* const found =
      std::find_if(store->key, end, [&](const KeyRow& row) { return row.key == key; });
  return found == end ? nullptr : found;
}

// Numbers are used again as late as possible; those of processes that have ended at last.
int TakeNumber() {
  const RaceStoreLock lock(*store);
  for (const bool of_ended : {false, true}) {
    for (int i = 0; i < kMaxActors; ++i) {
      const int number = (store->next_actor + i) % kMaxActors;
      ActorRow& row = store->actors[number];
      if (row.pid != 0 && !(of_ended && HasEnded(row.pid))) continue;
      row.pid = getpid();
      store->next_actor = number + 1;
      return number;
    }
  }
  Die(absl::StrCat("races: more than ", kMaxActors, " threads and streams: try races=processes"));
}

}  // namespace

void Clock::Join(const Clock& other) {
  for (int i = 0; i < kMaxActors; ++i) at[i] = std::max(at[i], other.at[i]);
}

Actor::~Actor() {
  if (number < 0) return;
  const RaceStoreLock lock(*store);
  store->actors[number].pid = 0;
}

void Actor::Enter(absl::string_view own_name) {
  if (number >= 0) return;
  number = TakeNumber();
  name = std::string(own_name);
  clock.at[number] = store->actors[number].epoch;
  Tick();
}

void Actor::Tick() { store->actors[number].epoch = ++clock.at[number]; }

void StartRaceDetector(const std::string& shared) {
  if (store == nullptr) {
    store = OpenRaceStore(shared);
    store_path = new std::string(shared);
  }
  if (*store_path != shared) Die("FAKE_CUDA: shared= cannot change within a process");
}

void NoteEnqueued(Stream& stream, const Operation& operation) {
  if (Off()) return;
  Actor& cpu = Cpu();
  Actor& actor = stream.actor;
  actor.is_stream = true;
  actor.Enter(absl::StrCat("stream ", stream.number));
  actor.clock.Join(cpu.clock);
  cpu.Tick();
  actor.Tick();
  if (operation.event != nullptr) operation.event->clock = actor.clock;
  if (operation.from != nullptr) {
    Judge({actor, operation.from, false, false, operation.function},
          PlacesOf(operation.from, operation.bytes));
  }
  if (operation.to != nullptr) {
    Judge({actor, operation.to, true, false, operation.function},
          PlacesOf(operation.to, operation.bytes));
  }
}

void NoteSeen(const Clock& clock) {
  if (!Off()) Cpu().clock.Join(clock);
}

void NoteCpuAccess(const void* begin, size_t bytes, bool write, absl::string_view what) {
  if (Off() || bytes == 0) return;
  Judge({Cpu(), begin, write, false, what}, PlacesOf(begin, bytes));
}

void NoteTakenAway(const void* begin, size_t bytes, absl::string_view what) {
  if (Off()) return;
  const Places places = PlacesOf(begin, bytes);
  Judge({Cpu(), begin, true, true, what}, places);
  ForgetOwnMemory(places);
}

void NoteReleased(uint64_t key) {
  if (Off()) return;
  Actor& cpu = Cpu();
  const RaceStoreLock lock(*store);
  KeyRow* row = FindKey(key);
  if (row == nullptr) {
    if (store->keys == kMaxKeys) Die(absl::StrCat("races: more than ", kMaxKeys, " keys"));
    row = &store->key[store->keys++];
    row->key = key;
    row->clock = Clock();
  }
  row->clock.Join(cpu.clock);
  cpu.Tick();
}

void NoteAcquired(uint64_t key) {
  if (Off()) return;
  Actor& cpu = Cpu();
  const RaceStoreLock lock(*store);
  const KeyRow* const row = FindKey(key);
  if (row != nullptr) cpu.clock.Join(row->clock);
}

}  // namespace harmony::fake_cuda
