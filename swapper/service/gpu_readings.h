#pragma once

#include <functional>

#include "common/runtime/program.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::swapper {

// Says what GPUs tell of themselves: one entry of `gpus` for each device. Takes some 40 ms for each
// GPU. One thread at a time.
using GpuReader = std::function<void(v1::DeviceStats* stats)>;

// Of the devices of this process. Where they tell nothing (sim devices, GPUs without the management
// library, which the log says then) the reader adds nothing.
GpuReader OpenGpuReader(const runtime::ProgramContext& context);

}  // namespace harmony::swapper
