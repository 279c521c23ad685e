#pragma once

// The machine as the planner sees it. PURE.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"

namespace harmony::plan {

enum class DeviceKind { kSim, kCuda };

// One device; `sim*4:mem=64MiB,flops=20G,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s` gives four of them,
// which share their link to the host with `,root=NAME` added, and of whose memory nothing else can
// use what `,context=BYTES` takes; `,host=50GB/s` is how fast the host updates parameters.
// `cuda:0,mem=20GiB` is that much of a GPU: the same one may be given several times, to have
// several devices on it.
struct DeviceSpec {
  DeviceKind kind = DeviceKind::kSim;
  int ordinal = 0;  // position in the machine's list; for cuda see cuda_ordinal
  int cuda_ordinal = -1;
  Bytes memory;   // of the device
  Bytes context;  // of it, what a process takes before it computes, as a GPU's context does
  // What a plan has: residency region, and workspace as models describe it.
  Bytes usable() const { return memory - context - reserve(); }
  // More workspace than that, on a GPU: models are described as the CPU's kernels compute them.
  // There attention comes out of LibTorch's operations, a piece at a time, and sums over rows are
  // formed in parts (worker/models/attention_in_pieces.cc, worker/kernels/row_kernels.h).
  Bytes reserve() const {
    if (kind == DeviceKind::kSim) return Bytes();
    return std::min(kMostReserve, Bytes(memory.count() / 16));
  }
  static constexpr Bytes kMostReserve{int64_t{64} << 20};
  // The least memory that a device like this one must have for so much to be usable.
  Bytes MemoryFor(Bytes usable) const;
  FlopsPerSecond flops;  // pacing; 0: none
  bool paced() const { return flops.value > 0; }
  // It computes as fast as this machine's cores do, which all such devices share.
  bool on_cores() const { return kind == DeviceKind::kSim && !paced(); }
  BytesPerSecond h2d, d2h, p2p;  // pacing; 0: none
  // Copies, too, are made by those cores, each as fast as it goes.
  bool copied_by_cores() const {
    return on_cores() && h2d.value <= 0 && d2h.value <= 0 && p2p.value <= 0;
  }
  // `copies=worker`: its worker carries its copies out, in the context in which it computes, in
  // place of the swapper: where copies of another process hold up what a GPU computes.
  bool worker_copies = false;
  // Devices of the same root share one paced link to the host: in each direction it carries one
  // copy after the other. Empty: a link of its own.
  std::string root;
  // Of the host that all devices of a machine belong to: bytes a second that its updates move; 0:
  // not given.
  BytesPerSecond host;
};

// Memory of a GPU comes in pages of this size; what is no whole page of mem= is left out.
inline constexpr Bytes kGpuPage(int64_t{2} << 20);

struct MachineSpec {
  std::vector<DeviceSpec> devices;  // all of one kind
  bool on_gpus() const { return !devices.empty() && devices.front().kind == DeviceKind::kCuda; }
  Bytes host_memory;  // virtual size of the host segment
  // The least of it that has an arena of so many bytes, for it holds tables, too; none: just those.
  std::function<Bytes(Bytes arena)> segment_for;
};

// Parses a device string, "sim*2:mem=2GiB,flops=20G" or "cuda:0,mem=20GiB"; several may be joined
// with ';' or spaces. InvalidArgument names the key or number that is wrong.
absl::StatusOr<std::vector<DeviceSpec>> ParseDevices(absl::string_view spec);
std::string ToString(const DeviceSpec& device);
// All of a machine, joined with ';'.
std::string ToString(const std::vector<DeviceSpec>& devices);
// Whether arithmetic is paced on each of them.
bool AllPaced(const std::vector<DeviceSpec>& devices);
// Whether arithmetic and the links to the host are paced.
bool HasSpeeds(const DeviceSpec& device);
// Whether these are of each device and, where there are several, so are their links to each other.
// Of GPUs nothing is. Otherwise times are measured, or rest on guesses.
bool AllSpeedsGiven(const std::vector<DeviceSpec>& devices);
// As given with any of the devices; 0: with none.
BytesPerSecond HostRate(const std::vector<DeviceSpec>& devices);
// Of a host that nothing is known of.
inline constexpr BytesPerSecond kHostGuess{4e9};
// Paced devices belong to a machine whose host is modelled, too: HostRate, or the guess. 0: the
// host is not paced.
BytesPerSecond PacedHostRate(const std::vector<DeviceSpec>& devices);

}  // namespace harmony::plan
