#pragma once

// LibTorch's CUDA allocator, confined to the workspace of the device of the job that runs.

#include "worker/cuda/cuda_device.h"

namespace harmony::worker::cuda {

// Once for each process, before LibTorch's first use of CUDA, after which it takes no other
// allocator.
void InstallWorkspaceAllocator();

// Has cuBLAS take what it computes with in this thread, some 32 MiB, from the GPU rather than from
// a workspace: plans count what layers compute with, and libraries' own is the process's, as its
// context is. To be called before each piece of work; only a thread's first call takes something.
// Throws c10::Error when the GPU has no memory left.
void PrepareLibraries();

// From now on tensors are taken from this device's workspace; null: from nowhere, which is an error
// of LibTorch's. Tensors of the device before may be freed afterwards.
void UseWorkspaceOf(CudaDevice* device);

}  // namespace harmony::worker::cuda
