#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/cuda/context.h"
#include "common/cuda/region.h"
#include "common/plan/machine.h"
#include "swapper/transfer/copier.h"
#include "swapper/transfer/peer_bounce.h"
#include "swapper/transfer/pinned_arena.h"

namespace harmony::swapper {

// Copies by the copy engines of GPUs. The swapper has a context of its own on each, which issues
// copies only: no kernel, no fill, no copy within a GPU but between two devices that are the same
// one. So it does not share the queues in which the workers' kernels wait. A worker that copies for
// its device does so in the context in which it computes. Each lane has its own queue: both
// directions of a link go at once.
//
// A copy has happened when the host has seen its event, which Run waits for; what is signalled and
// committed afterwards is signalled by the CPU.
class CudaCopier : public Copier {
 public:
  struct Options {
    std::vector<int> of_devices;  // whose lanes it runs
    bool in_compute_context = false;
    Bytes chunk = PinnedArena::kChunk;
    Bytes bounce = PeerBounce::kBuffer;
    std::function<void()> on_pinned = [] {};  // after each chunk of the arena that BeginJob pins
  };
  // `fds[d]` holds the region of `devices[d]`, several of which may be one GPU. `arena` is mapped
  // as long as the copier lives. REQUIRES: it runs the lanes of one device at least.
  static absl::StatusOr<std::unique_ptr<CudaCopier>> Create(
      const cuda::Driver& driver, std::byte* arena, const std::vector<plan::DeviceSpec>& devices,
      const std::vector<int>& fds, const Options& options);
  ~CudaCopier() override;

  Bytes MemoryOf(int device) const override;
  bool ReachesPeer(int from, int to) const override;
  absl::Status Run(const Copy& copy) override;
  // Pins the arena, so that copies of it need no staging.
  absl::Status BeginJob(const plan::Plan& plan, Bytes extent) override;
  absl::Status EndJob() override;

 private:
  struct Gpu;
  struct Device;
  struct Lane;

  CudaCopier(const cuda::Driver& driver, std::byte* arena, const Options& options);

  absl::Status Open(const std::vector<plan::DeviceSpec>& devices, const std::vector<int>& fds);
  // Of the GPUs whose lanes are run, and of those that take copies which do not reach them.
  absl::Status OpenContext(int ordinal, bool primary);
  absl::Status OpenLanes(int num_devices);
  // A copy between the arena and a device, piece by piece: none crosses the end of a pinned chunk.
  absl::Status QueueHostCopy(Lane& lane, const Copy& copy);
  absl::Status RunHostCopy(Lane& lane, const Copy& copy);
  absl::Status RunPeerCopy(Lane& lane, const Copy& copy);
  CUdeviceptr AddressOf(const SlotRange& range) const;

  const cuda::Driver& driver_;
  std::byte* const arena_;
  const Options options_;
  std::map<int, std::unique_ptr<Gpu>> gpus_;  // by ordinal
  const Gpu* home_ = nullptr;                 // of the first device whose lanes are run
  std::vector<Device> devices_;
  // Ordinals: the first can use the memory of the second. Each can its own.
  std::set<std::pair<int, int>> reaching_;
  std::map<int, std::unique_ptr<Lane>> lanes_;  // by index of LaneTable
  PinnedArena pinned_;
};

}  // namespace harmony::swapper
