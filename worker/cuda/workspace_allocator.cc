#include "worker/cuda/workspace_allocator.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <set>

#include "absl/cleanup/cleanup.h"
#include "worker/device/sim_allocator.h"

namespace harmony::worker::cuda {
namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;

Mutex mutex;
CudaDevice* active ABSL_GUARDED_BY(mutex) = nullptr;
// What libraries took for themselves, outside of any workspace.
std::set<void*> of_libraries ABSL_GUARDED_BY(mutex);
thread_local bool for_libraries = false;

void* AllocateForLibraries(size_t size) {
  void* made = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&made, size));
  MutexLock lock(mutex);
  of_libraries.insert(made);
  return made;
}

void* Allocate(size_t size, int, cudaStream_t) {
  if (for_libraries) return AllocateForLibraries(size);
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
  if (of_libraries.erase(data) != 0) {
    C10_CUDA_IGNORE_ERROR(cudaFree(data));
  } else if (active != nullptr) {
    active->Give(DeviceAddress(reinterpret_cast<uintptr_t>(data)));
  }
}

}  // namespace

void InstallWorkspaceAllocator() {
  pluggable::changeCurrentAllocator(pluggable::createCustomAllocator(&Allocate, &Free));
}

void PrepareLibraries() {
  for_libraries = true;
  const auto ended = absl::MakeCleanup([] { for_libraries = false; });
  // Both take their memory when they are first asked for, by thread and stream.
  at::cuda::getCurrentCUDABlasHandle();
  at::cuda::getCUDABlasLtWorkspace();
}

void UseWorkspaceOf(CudaDevice* device) {
  MutexLock lock(mutex);
  active = device;
}

}  // namespace harmony::worker::cuda
