#pragma once

#include <functional>
#include <vector>

#include "common/runtime/program.h"
#include "harmony/v1/gpu.pb.h"

namespace harmony::swapper {

// What GPUs tell of themselves, by device. Takes some 40 ms for each GPU. One thread at a time.
using GpuReader = std::function<std::vector<v1::GpuReadings>()>;

// Of the devices of this process. Where they tell nothing (sim devices, GPUs without the management
// library, which the log says then) it reads nothing.
GpuReader OpenGpuReader(const runtime::ProgramContext& context);

}  // namespace harmony::swapper
