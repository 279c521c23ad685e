#include "worker/cuda/workspace_allocator.h"

#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include "worker/device/sim_allocator.h"

namespace harmony::worker::cuda {
namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;

Mutex mutex;
CudaDevice* active ABSL_GUARDED_BY(mutex) = nullptr;

void* Allocate(size_t size, int, cudaStream_t) {
  MutexLock lock(mutex);
  TORCH_CHECK(active != nullptr, "no job has memory of this GPU");
  const Bytes wanted(static_cast<int64_t>(size));
  BestFit::Usage usage;
  const DeviceAddress address = active->Take(wanted, usage);
  if (!address) RaiseOutOfMemory(wanted, usage);
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address.value()));
}

void Free(void* data, size_t, int, cudaStream_t) {
  MutexLock lock(mutex);
  if (active != nullptr) active->Give(DeviceAddress(reinterpret_cast<uintptr_t>(data)));
}

}  // namespace

void InstallWorkspaceAllocator() {
  pluggable::changeCurrentAllocator(pluggable::createCustomAllocator(&Allocate, &Free));
}

void UseWorkspaceOf(CudaDevice* device) {
  MutexLock lock(mutex);
  active = device;
}

}  // namespace harmony::worker::cuda
