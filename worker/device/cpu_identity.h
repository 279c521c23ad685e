#pragma once

#include <string>

namespace harmony::worker {

// Of LibTorch as it was compiled against, "2.11.0".
std::string TorchVersion();
// "Intel(R) Xeon(R) Platinum 8581C CPU @ 2.10GHz"; "unknown" where the system does not say.
std::string ProcessorName();

// What fixes the bits of what this process computes on the CPU, besides the job.
std::string CpuComputesOn();

}  // namespace harmony::worker
