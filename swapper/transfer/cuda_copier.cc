#include "swapper/transfer/cuda_copier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/command/command.h"
#include "common/command/lane_kinds.h"

namespace harmony::swapper {

struct CudaCopier::Gpu {
  cuda::Context context;
};

struct CudaCopier::Device {
  int ordinal = 0;  // of the GPU
  cuda::RegionMapping region;
};

struct CudaCopier::Lane {
  const Gpu* const gpu;  // in whose context it copies
  cuda::CopyQueue queue;
  std::map<const Gpu*, std::unique_ptr<PeerBounce>> bounces;  // to GPUs that it does not reach
};

absl::StatusOr<std::unique_ptr<CudaCopier>> CudaCopier::Create(
    const cuda::Driver& driver, std::byte* arena, const std::vector<plan::DeviceSpec>& devices,
    const std::vector<int>& fds, const Options& options) {
  auto copier = std::unique_ptr<CudaCopier>(new CudaCopier(driver, arena, options));
  HARMONY_RETURN_IF_ERROR(copier->Open(devices, fds));
  HARMONY_RETURN_IF_ERROR(copier->OpenLanes(static_cast<int>(devices.size())));
  return copier;
}

CudaCopier::CudaCopier(const cuda::Driver& driver, std::byte* arena, const Options& options)
    : driver_(driver), arena_(arena), options_(options), pinned_(driver, arena, options.chunk) {}

CudaCopier::~CudaCopier() {
  if (home_ != nullptr) (void)EndJob();  // the end of the process does what this cannot
  lanes_.clear();
  devices_.clear();
}

absl::Status CudaCopier::Open(const std::vector<plan::DeviceSpec>& devices,
                              const std::vector<int>& fds) {
  std::set<int> ordinals;
  for (const plan::DeviceSpec& device : devices) ordinals.insert(device.cuda_ordinal);
  for (const int from : ordinals) {
    for (const int to : ordinals) {
      int can = from == to ? 1 : 0;
      if (can == 0 && driver_.DeviceCanAccessPeer(&can, from, to) != CUDA_SUCCESS) can = 0;
      if (can != 0) reaching_.emplace(from, to);
    }
  }
  for (const int device : options_.of_devices) {
    HARMONY_RETURN_IF_ERROR(OpenContext(devices[static_cast<size_t>(device)].cuda_ordinal,
                                        options_.in_compute_context));
  }
  for (const int device : options_.of_devices) {
    const int from = devices[static_cast<size_t>(device)].cuda_ordinal;
    for (const int to : ordinals) {
      if (!reaching_.contains({from, to})) HARMONY_RETURN_IF_ERROR(OpenContext(to, false));
    }
  }
  for (const plan::DeviceSpec& device : devices) {
    const int own = device.cuda_ordinal;
    // And those that use it in copies between devices.
    std::vector<int> accessors = {own};
    for (const int other : ordinals) {
      if (other != own && reaching_.contains({other, own})) accessors.push_back(other);
    }
    absl::StatusOr<cuda::RegionMapping> region = cuda::RegionMapping::Map(
        driver_, fds[static_cast<size_t>(device.ordinal)], device.memory, accessors);
    if (!region.ok()) return WithContext(region.status(), absl::StrCat("cuda:", own));
    devices_.push_back({own, *std::move(region)});
  }
  return absl::OkStatus();
}

absl::Status CudaCopier::OpenContext(int ordinal, bool primary) {
  if (gpus_.contains(ordinal)) return absl::OkStatus();
  HARMONY_ASSIGN_OR_RETURN(cuda::Context context, primary
                                                      ? cuda::Context::Primary(driver_, ordinal)
                                                      : cuda::Context::Create(driver_, ordinal));
  const auto opened = gpus_.emplace(ordinal, std::make_unique<Gpu>(Gpu{std::move(context)})).first;
  if (home_ == nullptr) home_ = opened->second.get();
  return absl::OkStatus();
}

absl::Status CudaCopier::OpenLanes(int num_devices) {
  const command::LaneTable table(num_devices);
  for (const int device : options_.of_devices) {
    Gpu* const gpu = gpus_.at(devices_[static_cast<size_t>(device)].ordinal).get();
    HARMONY_RETURN_IF_ERROR(gpu->context.MakeCurrent());
    absl::Status opened;
    command::ForEachLaneKindOf(command::LaneOwner::kSwapper, [&](command::LaneKind kind) {
      absl::StatusOr<cuda::CopyQueue> queue = cuda::CopyQueue::Create(driver_);
      opened.Update(queue.status());
      if (!queue.ok()) return;
      lanes_.emplace(table.IndexOf({kind, device}),
                     std::make_unique<Lane>(Lane{gpu, *std::move(queue), {}}));
    });
    HARMONY_RETURN_IF_ERROR(opened);
  }
  return absl::OkStatus();
}

Bytes CudaCopier::MemoryOf(int device) const {
  return devices_[static_cast<size_t>(device)].region.size();
}

bool CudaCopier::ReachesPeer(int from, int to) const {
  const int source = devices_[static_cast<size_t>(from)].ordinal;
  const int destination = devices_[static_cast<size_t>(to)].ordinal;
  return reaching_.contains({source, destination});
}

CUdeviceptr CudaCopier::AddressOf(const SlotRange& range) const {
  return devices_[static_cast<size_t>(range.device)].region.address() +
         static_cast<CUdeviceptr>(range.offset.count());
}

absl::Status CudaCopier::Run(const Copy& copy) {
  Lane& lane = *lanes_.at(copy.lane);
  HARMONY_RETURN_IF_ERROR(lane.gpu->context.MakeCurrent());
  return copy.source.device >= 0 && copy.destination.device >= 0 ? RunPeerCopy(lane, copy)
                                                                 : RunHostCopy(lane, copy);
}

absl::Status CudaCopier::RunHostCopy(Lane& lane, const Copy& copy) {
  const absl::Status queued = QueueHostCopy(lane, copy);
  // Also after an error: what was queued before it must not go on once this returns.
  const absl::Status finished = lane.queue.Finish();
  return queued.ok() ? finished : queued;
}

absl::Status CudaCopier::QueueHostCopy(Lane& lane, const Copy& copy) {
  const bool into_device = copy.source.device < 0;
  const SlotRange& host = into_device ? copy.source : copy.destination;
  const SlotRange& device = into_device ? copy.destination : copy.source;
  const CUdeviceptr base = AddressOf(device);
  for (Bytes done; done < host.size;) {
    const Bytes piece = std::min(host.size - done, pinned_.LongestFrom(host.offset + done));
    const size_t bytes = static_cast<size_t>(piece.count());
    std::byte* const on_host = arena_ + (host.offset + done).count();
    const CUdeviceptr on_device = base + static_cast<CUdeviceptr>(done.count());
    const CUresult result =
        into_device ? driver_.MemcpyHtoDAsync(on_device, on_host, bytes, lane.queue.stream())
                    : driver_.MemcpyDtoHAsync(on_host, on_device, bytes, lane.queue.stream());
    HARMONY_RETURN_IF_ERROR(driver_.Check(result, "starting a copy"));
    done += piece;
  }
  return absl::OkStatus();
}

absl::Status CudaCopier::RunPeerCopy(Lane& lane, const Copy& copy) {
  const CUdeviceptr from = AddressOf(copy.source), to = AddressOf(copy.destination);
  if (ReachesPeer(copy.source.device, copy.destination.device)) {
    HARMONY_RETURN_IF_ERROR(driver_.Check(
        driver_.MemcpyDtoDAsync(to, from, static_cast<size_t>(copy.source.size.count()),
                                lane.queue.stream()),
        "starting a copy between devices"));
    return lane.queue.Finish();
  }
  const int ordinal = devices_[static_cast<size_t>(copy.destination.device)].ordinal;
  const Gpu* const destination = gpus_.at(ordinal).get();
  std::unique_ptr<PeerBounce>& bounce = lane.bounces[destination];
  if (bounce == nullptr) {
    HARMONY_ASSIGN_OR_RETURN(bounce,
                             PeerBounce::Create(driver_, destination->context, options_.bounce));
  }
  return bounce->Run(lane.gpu->context, lane.queue, from, to, copy.source.size);
}

// A registration is of the whole process; any of its contexts would do. What a worker computes next
// on this thread finds its own.
absl::Status CudaCopier::BeginJob(const plan::Plan&, Bytes extent) {
  HARMONY_RETURN_IF_ERROR(home_->context.MakeCurrent());
  return pinned_.Pin(extent, options_.on_pinned);
}

absl::Status CudaCopier::EndJob() {
  HARMONY_RETURN_IF_ERROR(home_->context.MakeCurrent());
  return pinned_.Unpin();
}

}  // namespace harmony::swapper
