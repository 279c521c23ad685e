#pragma once

// What a process of the probe can be.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/probe/process.h"
#include "bench/gpu/probe/pump.h"

namespace harmony::bench {

using Arguments = std::vector<std::string>;

// Runs one role; the process ends with what it returns.
int RunRole(const std::string& role, const Arguments& arguments);

// Roles that hold or watch memory (holders.cc).
void RunMaker(const Arguments& arguments);     // makes a region without a context
void RunImporter(const Arguments& arguments);  // writes and checks a region
void RunObserver(const Arguments& arguments);  // says how much device memory is free
void RunContext(const Arguments& arguments);   // holds a context of some sort
void RunWatcher(const Arguments& arguments);   // looks for changes of a region
// Roles that work.
void RunCopier(const Arguments& arguments);  // copies in its own process, as a swapper does
void RunWorker(const Arguments& arguments);  // computes, and copies on a second thread if asked

// A part gives its answers by report.h. Those that need no context make none: it would be one more
// on the device that they measure.
struct Part {
  int number;
  const char* name;
  const char* question;
  double limit_seconds;
  void (*run)();
};
const std::vector<Part>& Parts();
void RunFacts();
void RunRegion();
void RunContexts();
void RunPinning();
void RunCopies();
void RunOverlap();
void RunDeath();
void RunWaits();

// Memory that several processes of a part copy between: a region, and shared host memory.
class SharedMemory {
 public:
  // The host's is filled with random words.
  explicit SharedMemory(uint64_t bytes);
  // Sends what a copier, worker or watcher asks for at its start.
  void GiveTo(const Process& process) const;
  uint64_t bytes() const { return bytes_; }
  uint64_t half() const { return bytes_ / 2; }
  char* host() const { return host_; }

 private:
  uint64_t bytes_;
  int region_ = -1;
  int descriptor_ = -1;
  char* host_ = nullptr;
};

// The device's free memory, by an observer process.
double FreeBytes(const Process& observer);

// A region made by a process that is gone when this returns.
int MakeRegion(uint64_t bytes);

// Which memory a copier uses: Harmony's, or what the driver gives to any program.
enum class DeviceMemory { kRegion, kPlain };
enum class PinnedMemory { kShared, kPlain };
// The other side of GiveTo: receives, maps, pins, and fills the device's half that is copied from.
Copies ReceiveCopies(uint64_t bytes, DeviceMemory device, PinnedMemory pinned);

}  // namespace harmony::bench
