#pragma once

// The functions of the fake driver: each of the table of common/cuda/driver.h, as `cuda.h` declares
// it, without the prefix "cu". They run with the lock of state.h held, after table.cc has seen that
// the driver is initialised and, where the function needs one, that there is a current context.

#include <cuda.h>

#include "common/cuda/driver.h"

namespace harmony::fake_cuda {

#define FAKE_CUDA_DECLARE(name) decltype(::cu##name) name;
HARMONY_CUDA_FUNCTIONS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE

}  // namespace harmony::fake_cuda
