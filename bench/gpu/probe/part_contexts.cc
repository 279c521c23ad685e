#include <vector>

#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

// The device's free memory, once it has not changed for a while: contexts go slowly.
double SettledFreeBytes(const Process& observer) {
  double free = FreeBytes(observer);
  const double end = NowSeconds() + 5;
  for (int same = 0; same < 20 && NowSeconds() < end;) {
    Nap(5000);
    const double now = FreeBytes(observer);
    same = now == free ? same + 1 : 0;
    free = now;
  }
  return free;
}

}  // namespace

void RunContexts() {
  Process observer("observer", {});
  observer.Expect("ready");
  const struct {
    const char* sort;
    const char* name;
  } kSorts[] = {
      {"created", "created_by_cuCtxCreate"}, {"primary", "primary"},
      {"copies", "primary_with_copies"},     {"kernel", "primary_with_kernel"},
      {"cublas", "primary_with_cublas"},
  };
  const int rounds = TheSettings().quick ? 1 : 3;
  for (const auto& [sort, name] : kSorts) {
    std::vector<double> device, resident, seconds;
    bool lacking = false;
    for (int round = 0; round < rounds && !lacking; ++round) {
      const double before = SettledFreeBytes(observer);
      Process process("context", {sort});
      const Message answer = process.channel().Receive();
      lacking = answer.ended || answer.text.rfind("ready", 0) != 0;
      if (lacking) {
        ReportText(name, "not measured: " + answer.text);
        continue;
      }
      const std::vector<double> facts = Numbers(answer.text.substr(5), 3);
      device.push_back((before - SettledFreeBytes(observer) - facts[1]) / kMiB);
      seconds.push_back(facts[0]);
      resident.push_back(facts[2]);
      process.End();
    }
    if (lacking) continue;
    ReportSpread(std::string(name) + "_device", SpreadOf(device), "MiB");
    ReportSpread(std::string(name) + "_host_resident", SpreadOf(resident), "MiB");
    ReportSpread(std::string(name) + "_seconds_to_make", SpreadOf(seconds), "s");
  }
}

}  // namespace harmony::bench
