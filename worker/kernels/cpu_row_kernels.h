#pragma once

#include "worker/kernels/row_kernels.h"

namespace harmony::worker {

// On the CPU, one lane of a team after the other, by the calling thread: for tests of what GPUs
// compute. (What the CPU itself computes by is worker/models/kernels.h, which is made for it.)
const RowKernels& CpuRowKernels();

}  // namespace harmony::worker
