#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/libraries.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

constexpr uint64_t kPage = 4096;
// Copies as large as pins may be, and many of them in flight: a driver that only stops taking new
// ones would go on for tens of milliseconds.
constexpr uint64_t kChunk = kPinChunk;
constexpr int kInFlight = 16;

// Marks in the host memory that the dying process writes to.
class HostMarks {
 public:
  HostMarks(char* memory, uint64_t bytes) : memory_(memory), pages_(bytes / kPage) {}

  void Write(uint64_t seed) {
    seed_ = seed;
    for (uint64_t i = 0; i < pages_; ++i) {
      const uint64_t word = RandomWord(seed_, i);
      memcpy(memory_ + i * kPage, &word, sizeof(word));
    }
  }
  bool Overwritten() const {
    for (uint64_t i = 0; i < pages_; ++i) {
      const uint64_t word = RandomWord(seed_, i);
      if (memcmp(memory_ + i * kPage, &word, sizeof(word)) != 0) return true;
    }
    return false;
  }

 private:
  char* const memory_;
  const uint64_t pages_;
  uint64_t seed_ = 0;
};

// Notes when a process was last listed.
class ListWatch {
 public:
  ListWatch(const Nvml& nvml, const std::set<unsigned>& wanted)
      : thread_([this, &nvml, wanted] {
          while (!stop_.load()) {
            const double now = NowSeconds();
            const std::set<unsigned> ids = nvml.ProcessIds();
            for (unsigned id : wanted) {
              if (ids.count(id) > 0) last_listed_.store(now);
            }
            Nap(200);
          }
        }) {}
  // The last time that it was listed, in NowSeconds.
  double Stop() {
    stop_.store(true);
    thread_.join();
    return last_listed_.load();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<double> last_listed_{0};
  std::thread thread_;  // last: it uses the others
};

struct Death {
  bool seen_writing = false;    // the marks work: a living process overwrote them
  bool host_changed = false;    // after the exit
  bool device_changed = false;  // after the exit
  double host_change_ms = -1;   // after the exit
  double exit_ms = 0;           // from the kill to the exit
  double host_marked_ms = 0;    // from the exit until the host's marks were written
  double marked_ms = 0;         // from the exit until the device's were, too
  size_t listed_ids = 0;        // how many process ids the copier added to NVML's list
  double listed_after_ms = -1;  // how long after its exit it was still listed
};

double Watch(const Process& watcher, double seconds) {
  return Numbers(watcher.Ask(Format("watch %.3f", seconds), "watched"), 2)[1];
}

// Do the marks change while the process lives? Otherwise finding none changed later says nothing.
bool SeenWriting(const Process& watcher, HostMarks& marks, uint64_t seed) {
  watcher.Ask("mark", "marked");
  marks.Write(seed);
  const bool device = Watch(watcher, 0.5) >= 0;
  return device && marks.Overwritten();
}

Death Kill(const SharedMemory& memory, const Process& watcher, const Nvml& nvml, uint64_t seed) {
  Death death;
  HostMarks marks(memory.host() + memory.half(), memory.half());
  const std::set<unsigned> before = nvml.ProcessIds();
  Process copier("copier", {std::to_string(memory.bytes()), "region", "shared"});
  memory.GiveTo(copier);
  copier.Expect("ready");
  copier.Send(
      Format("start %llu %d %d 0.03", static_cast<unsigned long long>(kChunk), kBoth, kInFlight));
  Nap(200000);
  death.seen_writing = SeenWriting(watcher, marks, seed);
  std::set<unsigned> added;
  for (unsigned id : nvml.ProcessIds()) {
    if (before.count(id) == 0) added.insert(id);
  }
  death.listed_ids = added.size();
  ListWatch list(nvml, added);
  const double killed = NowSeconds();
  copier.Kill();
  const double gone = copier.AwaitExit();
  watcher.Send("mark");
  marks.Write(seed + 1);
  death.host_marked_ms = (NowSeconds() - gone) * 1e3;
  watcher.Expect("marked");
  death.exit_ms = (gone - killed) * 1e3;
  death.marked_ms = (NowSeconds() - gone) * 1e3;
  watcher.Send("watch 2");
  while (!watcher.channel().Readable()) {
    if (!death.host_changed && marks.Overwritten()) {
      death.host_changed = true;
      death.host_change_ms = (NowSeconds() - gone) * 1e3;
    }
    Nap(200);
  }
  death.device_changed = Numbers(watcher.Expect("watched"), 2)[1] >= 0;
  const double last_listed = list.Stop();
  if (last_listed > gone) death.listed_after_ms = (last_listed - gone) * 1e3;
  return death;
}

void Report(const std::vector<Death>& deaths) {
  std::vector<double> exits, host_marked, marked, listed;
  bool writing = true, host = false, device = false;
  size_t ids = 0;
  for (const Death& death : deaths) {
    exits.push_back(death.exit_ms);
    host_marked.push_back(death.host_marked_ms);
    marked.push_back(death.marked_ms);
    listed.push_back(death.listed_after_ms);
    writing = writing && death.seen_writing;
    host = host || death.host_changed;
    device = device || death.device_changed;
    ids = ids > death.listed_ids ? ids : death.listed_ids;
    if (death.host_changed) ReportNumber("host_memory_change_seen", death.host_change_ms, "ms");
  }
  ReportSpread("kill_to_exit", SpreadOf(exits), "ms");
  // What ends before a mark is written is not seen.
  ReportSpread("exit_to_host_marked", SpreadOf(host_marked), "ms");
  ReportSpread("exit_to_device_marked", SpreadOf(marked), "ms");
  ReportFlag("copies_seen_before_the_kill", writing);
  ReportNumber("process_ids_added_to_nvml_list", static_cast<double>(ids), "");
  if (ids > 0) {
    ReportSpread("listed_by_nvml_after_exit", SpreadOf(listed), "ms, -1: not listed any more");
  }
  ReportVerdict("nothing_writes_after_exit", writing && !host && !device,
                !writing         ? "not known: the copies were not seen before the kill either"
                : host && device ? "host and device memory changed after the exit"
                : host           ? "host memory changed after the exit"
                : device         ? "device memory changed after the exit"
                                 : "no mark changed within 2 s after the exit");
}

}  // namespace

void RunDeath() {
  char bus[64] = "";
  if (Cuda().DeviceGetPCIBusId(bus, sizeof(bus), TheDevice()) != CUDA_SUCCESS) bus[0] = '\0';
  const Nvml nvml(bus);
  ReportFlag("nvml", nvml.works());
  const SharedMemory memory(2 * kPinChunk);
  Process watcher("watcher", {std::to_string(memory.bytes())});
  memory.GiveTo(watcher);
  watcher.Expect("ready");
  ReportFlag("exit_known_by_pidfd", watcher.has_pidfd());
  std::vector<Death> deaths;
  for (uint64_t trial = 0; trial < (TheSettings().quick ? 1u : 3u); ++trial) {
    deaths.push_back(Kill(memory, watcher, nvml, 100 + 2 * trial));
  }
  Report(deaths);
}

}  // namespace harmony::bench
