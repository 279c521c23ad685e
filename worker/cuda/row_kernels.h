#pragma once

#include "worker/kernels/row_kernels.h"

namespace harmony::worker::cuda {

// On the device that is current when they are called, queued on its default stream; an error of a
// launch is the stream's.
const RowKernels& CudaRowKernels();

}  // namespace harmony::worker::cuda
