#include <unistd.h>

#include <algorithm>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

constexpr uint64_t kPinned = kGiB;

struct Times {
  std::vector<double> fill, pin, unpin;  // seconds for a GiB
};

// Anew each time: memory that was pinned once may be quicker the second time. False: no such pages.
bool PinOnce(Pages pages, uint64_t chunk, Times& times, double& huge) {
  const int descriptor = NewHostMemory(kPinned, pages);
  if (descriptor < 0) return false;
  char* memory = MapHostMemory(descriptor, kPinned, pages);
  close(descriptor);
  if (memory == nullptr) return false;
  const double begin = NowSeconds();
  FillRandom(memory, kPinned, 3);
  const double filled = NowSeconds();
  huge = pages == Pages::kHugetlb ? 1 : HugeShare(memory, kPinned);
  const double looked = NowSeconds();
  Pin(memory, kPinned, chunk);
  const double pinned = NowSeconds();
  Unpin(memory, kPinned, chunk);
  times.unpin.push_back(NowSeconds() - pinned);
  times.pin.push_back(pinned - looked);
  times.fill.push_back(filled - begin);
  UnmapHostMemory(memory, kPinned);
  return true;
}

void Report(const std::string& name, Pages pages, uint64_t chunk) {
  Times times;
  double huge = 0;
  const int rounds = TheSettings().quick ? 2 : 4;
  for (int round = 0; round < rounds; ++round) {
    if (!PinOnce(pages, chunk, times, huge)) {
      ReportText(name, "this machine has no such pages");
      return;
    }
  }
  ReportNumber(name + "_share_of_huge_pages", huge, "");
  ReportSpread(name + "_fill", SpreadOf(times.fill), "s/GiB");
  ReportSpread(name + "_pin", SpreadOf(times.pin), "s/GiB");
  ReportSpread(name + "_unpin", SpreadOf(times.unpin), "s/GiB");
}

}  // namespace

void RunPinning() {
  UsePrimaryContext();
  Times warm_up;
  double huge = 0;
  if (!PinOnce(Pages::kSmall, kPinChunk, warm_up, huge)) Fail("no shared memory");
  Report("small_pages_256_mib", Pages::kSmall, kPinChunk);
  Report("small_pages_1_gib", Pages::kSmall, kGiB);
  Report("huge_pages_256_mib", Pages::kTransparentHuge, kPinChunk);
  Report("hugetlb_256_mib", Pages::kHugetlb, kPinChunk);
}

}  // namespace harmony::bench
