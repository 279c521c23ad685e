#include "coordinator/planner/report/basis.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace harmony::planner {
namespace {

// Those that some device has not: "h2d= of device 1, d2h= of device 1". Empty: none is given.
std::string MissingSpeeds(const std::vector<plan::DeviceSpec>& devices) {
  std::vector<std::string> missing;
  bool any = false;
  for (const plan::DeviceSpec& device : devices) {
    const std::pair<const char*, double> speeds[] = {{"flops=", device.flops.value},
                                                     {"h2d=", device.h2d.value},
                                                     {"d2h=", device.d2h.value},
                                                     {"p2p=", device.p2p.value}};
    // A single device has nobody to copy to.
    const size_t count = std::size(speeds) - (devices.size() == 1 ? 1 : 0);
    for (const auto& [name, value] : absl::MakeSpan(speeds, count)) {
      any |= value > 0;
      if (value > 0) continue;
      missing.push_back(absl::StrCat(name, " of device ", device.ordinal));
    }
  }
  if (!any) return "";
  constexpr size_t kShown = 6;
  const size_t more = missing.size() - std::min(missing.size(), kShown);
  missing.resize(missing.size() - more);
  return absl::StrCat(absl::StrJoin(missing, ", "),
                      more > 0 ? absl::StrCat(" (and ", more, " more)") : "");
}

}  // namespace

std::string BasisOfSpeeds(const plan::MachineSpec& machine) {
  if (plan::AllSpeedsGiven(machine.devices)) {
    return plan::HostRate(machine.devices).value > 0
               ? "modelled: the speeds given for the devices and the host"
               : "modelled: the speeds given for the devices; the host's is a guess (4 GB/s; host= "
                 "of a device gives it)";
  }
  const std::string missing = MissingSpeeds(machine.devices);
  return absl::StrCat(
      missing.empty() ? "guesses, since no speeds are given"
                      : absl::StrCat("guesses where no speed is given, which is ", missing),
      " (a device 40 GFLOP/s and 4 GB/s, the host 4 GB/s): plans are compared by them, but the ",
      "time can be far off. Measure with `harmony profile`, or give flops=, h2d=, d2h=, p2p=");
}

}  // namespace harmony::planner
