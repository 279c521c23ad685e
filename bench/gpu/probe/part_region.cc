#include <unistd.h>

#include <string>
#include <vector>

#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

// Waits until as much is free as before, since a driver tidies up after the last user. Seconds, or
// -1.
double SecondsUntilFree(const Process& observer, double wanted) {
  const double begin = NowSeconds();
  while (NowSeconds() < begin + 5) {
    if (FreeBytes(observer) >= wanted - 4 * static_cast<double>(kMiB)) return NowSeconds() - begin;
    Nap(5000);
  }
  return -1;
}

bool Intact(const Process& importer, int seed) {
  return Numbers(importer.Ask("check " + std::to_string(seed), "checked"), 1)[0] == 1;
}

struct Importer {
  Process process;
  std::vector<double> seconds;  // importing, mapping
  Importer(int region, uint64_t bytes) : process("importer", {std::to_string(bytes)}) {
    process.Send("region", region);
    seconds = Numbers(process.Expect("ready"), 2);
  }
};

struct Made {
  int region = -1;
  std::vector<double> facts;  // seconds to start, create, export; had a context; needed one
  double overhead_bytes = 0;  // of the maker's process, beside the region
};

Made Make(const Process& observer, uint64_t bytes) {
  Made made;
  const double before = FreeBytes(observer);
  Process maker("maker", {std::to_string(bytes)});
  made.facts = Numbers(maker.Expect("made", &made.region), 5);
  made.overhead_bytes = before - FreeBytes(observer) - static_cast<double>(bytes);
  maker.End();
  return made;
}

// Users write, are killed, end; what they wrote has to stay. Names the first step that lost it.
std::string LostBy(int region, uint64_t bytes) {
  {
    Importer first(region, bytes);
    ReportNumber("import", first.seconds[0] * 1e3, "ms");
    ReportNumber("map", first.seconds[1] * 1e3, "ms");
    first.process.Ask("write 1", "written");
    if (!Intact(first.process, 1)) return "the writer itself";
    Importer second(region, bytes);
    if (!Intact(second.process, 1)) return "a second process";
    first.process.Kill();
    first.process.AwaitExit();
    if (!Intact(second.process, 1)) return "the kill of the writer";
    second.process.Ask("write 2", "written");
    second.process.End();
  }
  // Nobody has it mapped now; only this process, which never started the driver, has the
  // descriptor.
  Importer third(region, bytes);
  return Intact(third.process, 2) ? "" : "the end of all its users";
}

void TryLarge(const Process& observer) {
  const double free = FreeBytes(observer);
  const uint64_t bytes = static_cast<uint64_t>(free * 0.9) / (64 * kMiB) * (64 * kMiB);
  const Made made = Make(observer, bytes);
  ReportNumber("large_region", static_cast<double>(bytes) / kGiB, "GiB");
  ReportNumber("large_region_create", made.facts[1] * 1e3, "ms");
  {
    const Importer importer(made.region, bytes);
    ReportNumber("large_region_import", importer.seconds[0] * 1e3, "ms");
    ReportNumber("large_region_map", importer.seconds[1] * 1e3, "ms");
  }
  close(made.region);
  ReportNumber("large_region_seconds_until_free_again", SecondsUntilFree(observer, free), "s");
}

}  // namespace

void RunRegion() {
  const uint64_t bytes = kGiB;
  Process observer("observer", {});
  observer.Expect("ready");
  const double free = FreeBytes(observer);
  std::vector<double> create, exports, start;
  Made made;
  for (int round = 0; round < 3; ++round) {
    if (made.region >= 0) close(made.region);
    made = Make(observer, bytes);
    start.push_back(made.facts[0] * 1e3);
    create.push_back(made.facts[1] * 1e3);
    exports.push_back(made.facts[2] * 1e3);
  }
  ReportSpread("maker_start", SpreadOf(start), "ms");
  ReportSpread("create_1_gib", SpreadOf(create), "ms");
  ReportSpread("export", SpreadOf(exports), "ms");
  ReportNumber("maker_overhead_on_device", made.overhead_bytes / kMiB, "MiB");
  ReportVerdict("maker_without_context", made.facts[3] == 0 && made.facts[4] == 0,
                made.facts[4] != 0   ? "making a region needs a context"
                : made.facts[3] != 0 ? "making a region made a context by itself"
                                     : "a region is made and exported without a context");
  const std::string lost = LostBy(made.region, bytes);
  ReportVerdict(
      "region_outlives_users", lost.empty(),
      lost.empty() ? "it outlives its maker, a killed user and all users" : "lost by " + lost);
  close(made.region);
  ReportNumber("seconds_until_free_again", SecondsUntilFree(observer, free), "s");
  TryLarge(observer);
}

}  // namespace harmony::bench
