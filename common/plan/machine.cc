#include "common/plan/machine.h"

#include <functional>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace harmony::plan {
namespace {

constexpr absl::string_view kExamples =
    "write it like sim*4:mem=64MiB,flops=20G,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s or cuda:0,mem=20GiB";

absl::Status Wrong(absl::string_view device, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("devices: '", device, "': ", why, " (", kExamples, ")"));
}

absl::Status CheckMemory(Bytes memory) {
  if (memory < MiB(1)) return absl::InvalidArgumentError("must be at least 1MiB");
  if (memory.count() <= limits::kMostBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("must be at most ", FormatBytes(Bytes(limits::kMostBytes))));
}

absl::Status CheckRate(double rate, double least, double most, absl::string_view range) {
  if (rate <= 0) return absl::InvalidArgumentError("must be above 0");
  if (rate >= least && rate <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("must be ", range));
}

absl::Status ReadMemory(absl::string_view value, DeviceSpec& device) {
  HARMONY_ASSIGN_OR_RETURN(device.memory, ParseBytes(value));
  HARMONY_RETURN_IF_ERROR(CheckMemory(device.memory));
  if (device.kind != DeviceKind::kCuda) return absl::OkStatus();
  if (device.memory < kGpuPage) return absl::InvalidArgumentError("must be at least 2MiB");
  device.memory -= Bytes(device.memory.count() % kGpuPage.count());
  return absl::OkStatus();
}

absl::Status ReadCopies(absl::string_view value, DeviceSpec& device) {
  device.worker_copies = value == "worker";
  if (device.worker_copies || value == "swapper") return absl::OkStatus();
  return absl::InvalidArgumentError("must be worker or swapper");
}

absl::Status ReadContext(absl::string_view value, DeviceSpec& device) {
  HARMONY_ASSIGN_OR_RETURN(device.context, ParseBytes(value));
  return absl::OkStatus();
}

absl::Status ReadFlops(absl::string_view value, DeviceSpec& device) {
  HARMONY_ASSIGN_OR_RETURN(device.flops, ParseFlops(value));
  return CheckRate(device.flops.value, limits::kLeastFlops, limits::kMostFlops,
                   "from 1M to 1000P (floating-point operations per second)");
}

template <BytesPerSecond DeviceSpec::*kRate>
absl::Status ReadRate(absl::string_view value, DeviceSpec& device) {
  HARMONY_ASSIGN_OR_RETURN(device.*kRate, ParseBytesPerSecond(value));
  return CheckRate((device.*kRate).value, limits::kLeastBytesPerSecond, limits::kMostBytesPerSecond,
                   "from 1kB/s to 1e18B/s");
}

absl::Status ReadRoot(absl::string_view value, DeviceSpec& device) {
  device.root = std::string(value);
  if (!value.empty() && absl::c_all_of(value, absl::ascii_isalnum)) return absl::OkStatus();
  return absl::InvalidArgumentError("must be a name of letters and digits");
}

struct Option {
  absl::string_view key;
  absl::Status (*read)(absl::string_view value, DeviceSpec& device);
  bool of_gpus = false;  // too, not only of simulated devices
};
constexpr Option kOptions[] = {{"mem", ReadMemory, true},
                               {"context", ReadContext},
                               {"flops", ReadFlops},
                               {"h2d", ReadRate<&DeviceSpec::h2d>},
                               {"d2h", ReadRate<&DeviceSpec::d2h>},
                               {"p2p", ReadRate<&DeviceSpec::p2p>},
                               {"root", ReadRoot},
                               {"host", ReadRate<&DeviceSpec::host>},
                               {"copies", ReadCopies, true}};

absl::Status ApplyOption(absl::string_view key, absl::string_view value, DeviceSpec& device) {
  const bool gpu = device.kind == DeviceKind::kCuda;
  std::vector<absl::string_view> known;
  for (const Option& option : kOptions) {
    if (gpu && !option.of_gpus) continue;
    if (option.key == key) return option.read(value, device);
    known.push_back(option.key);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown key (known", gpu ? " of a cuda device" : "", ": ", absl::StrJoin(known, ", "), ")"));
}

// "mem=64MiB,flops=20G"
absl::Status ApplyOptions(absl::string_view text, absl::string_view options, DeviceSpec& device) {
  std::set<absl::string_view> seen;
  for (absl::string_view option : absl::StrSplit(options, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(option, absl::MaxSplits('=', 1));
    if (parts.size() != 2) {
      return Wrong(text, absl::StrCat("'", option, "' is not of the form key=value"));
    }
    if (!seen.insert(parts[0]).second) {
      return Wrong(text, absl::StrCat("'", parts[0], "' is given twice"));
    }
    if (absl::Status status = ApplyOption(parts[0], parts[1], device); !status.ok()) {
      return Wrong(text, absl::StrCat("'", option, "': ", status.message()));
    }
  }
  return absl::OkStatus();
}

// "cuda:1,mem=20GiB"
absl::StatusOr<DeviceSpec> ParseCuda(absl::string_view text) {
  DeviceSpec device;
  device.kind = DeviceKind::kCuda;
  absl::string_view rest = absl::StripPrefix(text, "cuda");
  if (!absl::ConsumePrefix(&rest, ":")) return Wrong(text, "a cuda device needs its number");
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits(',', 1));
  int ordinal = 0;
  if (!absl::SimpleAtoi(parts[0], &ordinal) || ordinal < 0 || ordinal > 1023) {
    return Wrong(text, absl::StrCat("'", parts[0], "' is not the number of a cuda device"));
  }
  device.cuda_ordinal = ordinal;
  if (parts.size() == 2) HARMONY_RETURN_IF_ERROR(ApplyOptions(text, parts[1], device));
  return device;
}

// "sim", "sim*4", each with ":options"; the count goes to `count`.
absl::StatusOr<DeviceSpec> ParseSim(absl::string_view text, int* count) {
  DeviceSpec device;
  absl::string_view rest = absl::StripPrefix(text, "sim");
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits(':', 1));
  *count = 1;
  if (!parts[0].empty()) {
    if (parts[0][0] != '*' || !absl::SimpleAtoi(parts[0].substr(1), count) || *count < 1 ||
        *count > limits::kMostDevices) {
      return Wrong(text, absl::StrCat("after 'sim' may follow *N with N from 1 to ",
                                      limits::kMostDevices, ", then ':' and options"));
    }
  }
  if (parts.size() == 2) HARMONY_RETURN_IF_ERROR(ApplyOptions(text, parts[1], device));
  if (device.memory.count() == 0) return Wrong(text, "a sim device needs mem=");
  if (device.usable() < MiB(1)) return Wrong(text, "context= leaves less than 1MiB of mem=");
  if (!device.root.empty() && (device.h2d.value <= 0 || device.d2h.value <= 0)) {
    return Wrong(text, "devices that share a root= need h2d= and d2h=, the speed of its link");
  }
  if (!device.root.empty() && device.worker_copies) {
    return Wrong(text, "copies=worker: the link of a root= is emulated by the swapper alone");
  }
  return device;
}

// Devices of one root have one link.
absl::Status CheckRoots(const std::vector<DeviceSpec>& devices) {
  std::map<absl::string_view, const DeviceSpec*> first;
  for (const DeviceSpec& device : devices) {
    if (device.root.empty()) continue;
    const DeviceSpec& other = *first.emplace(device.root, &device).first->second;
    if (device.h2d == other.h2d && device.d2h == other.d2h) continue;
    return Wrong(
        ToString(device),
        absl::StrCat("device ", device.ordinal, " has another h2d= or d2h= than device ",
                     other.ordinal, ", but both have root=", device.root, ", which is one link"));
  }
  return absl::OkStatus();
}

// All devices belong to one host.
absl::Status ShareHost(std::vector<DeviceSpec>& devices) {
  const BytesPerSecond rate = HostRate(devices);
  for (DeviceSpec& device : devices) {
    if (device.host.value > 0 && device.host.value != rate.value) {
      return Wrong(ToString(device),
                   "host= differs from that of another device; all belong to one host");
    }
    device.host = rate;
  }
  return absl::OkStatus();
}

std::string Rate(absl::string_view key, double value, absl::string_view unit) {
  return value == 0 ? "" : absl::StrCat(",", key, "=", absl::StrFormat("%.17g", value), unit);
}

}  // namespace

absl::StatusOr<std::vector<DeviceSpec>> ParseDevices(absl::string_view spec) {
  std::vector<DeviceSpec> devices;
  for (absl::string_view text :
       absl::StrSplit(spec, absl::ByAnyChar("; \t\n"), absl::SkipEmpty())) {
    int count = 1;
    DeviceSpec device;
    if (absl::StartsWith(text, "cuda")) {
      HARMONY_ASSIGN_OR_RETURN(device, ParseCuda(text));
    } else if (absl::StartsWith(text, "sim")) {
      HARMONY_ASSIGN_OR_RETURN(device, ParseSim(text, &count));
    } else {
      return Wrong(text, "unknown kind of device (known: sim, cuda)");
    }
    if (!devices.empty() && devices.front().kind != device.kind) {
      return Wrong(text, "devices of one machine are either all sim or all cuda");
    }
    for (int i = 0; i < count; ++i) {
      device.ordinal = static_cast<int>(devices.size());
      devices.push_back(device);
    }
    if (devices.size() > limits::kMostDevices) {
      return Wrong(text, absl::StrCat("more than ", limits::kMostDevices, " devices in all"));
    }
  }
  if (devices.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("devices: none given; ", kExamples));
  }
  HARMONY_RETURN_IF_ERROR(CheckRoots(devices));
  HARMONY_RETURN_IF_ERROR(ShareHost(devices));
  return devices;
}

Bytes DeviceSpec::MemoryFor(Bytes usable) const {
  if (kind == DeviceKind::kSim) return usable + context;
  // By how much the reserve is a part of the memory, or the most that it is.
  const Bytes by_part((usable.count() * 16 + 14) / 15);
  return std::min(by_part, usable + kMostReserve).AlignUp(kGpuPage.count());
}

std::string ToString(const DeviceSpec& device) {
  const char* const copies = device.worker_copies ? ",copies=worker" : "";
  if (device.kind == DeviceKind::kCuda) {
    return absl::StrCat(
        "cuda:", device.cuda_ordinal,
        device.memory.count() == 0 ? "" : absl::StrCat(",mem=", device.memory.count()), copies);
  }
  return absl::StrCat(
      "sim:mem=", device.memory.count(),
      device.context.count() == 0 ? "" : absl::StrCat(",context=", device.context.count()),
      Rate("flops", device.flops.value, ""), Rate("h2d", device.h2d.value, "B/s"),
      Rate("d2h", device.d2h.value, "B/s"), Rate("p2p", device.p2p.value, "B/s"),
      device.root.empty() ? "" : absl::StrCat(",root=", device.root),
      Rate("host", device.host.value, "B/s"), copies);
}

std::string ToString(const std::vector<DeviceSpec>& devices) {
  return absl::StrJoin(devices, ";", [](std::string* out, const DeviceSpec& device) {
    absl::StrAppend(out, ToString(device));
  });
}

bool AllPaced(const std::vector<DeviceSpec>& devices) {
  return absl::c_all_of(devices, std::mem_fn(&DeviceSpec::paced));
}

bool HasSpeeds(const DeviceSpec& device) {
  return device.paced() && device.h2d.value > 0 && device.d2h.value > 0;
}

bool AllSpeedsGiven(const std::vector<DeviceSpec>& devices) {
  return absl::c_all_of(devices, [&](const DeviceSpec& device) {
    return HasSpeeds(device) && (device.p2p.value > 0 || devices.size() == 1);
  });
}

BytesPerSecond HostRate(const std::vector<DeviceSpec>& devices) {
  const auto given =
      absl::c_find_if(devices, [](const DeviceSpec& device) { return device.host.value > 0; });
  return given == devices.end() ? BytesPerSecond() : given->host;
}

BytesPerSecond PacedHostRate(const std::vector<DeviceSpec>& devices) {
  if (!AllPaced(devices)) return BytesPerSecond();
  const BytesPerSecond given = HostRate(devices);
  return given.value > 0 ? given : kHostGuess;
}

}  // namespace harmony::plan
