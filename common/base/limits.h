#pragma once

// The least and the most that input may say, chosen in one place. Whatever lies beyond is a slip of
// the pen or an attack; within, sizes and times can be added up without overflow.

#include <cstdint>

namespace harmony::limits {

// Of a device, a link, the host.
inline constexpr double kLeastFlops = 1e6, kMostFlops = 1e18;  // per second
inline constexpr double kLeastBytesPerSecond = 1e3, kMostBytesPerSecond = 1e18;
// Of anything that is measured; of how much slower a task is while all devices compute.
inline constexpr double kMostSeconds = 86'400;
inline constexpr double kLeastTogether = 1e-3, kMostTogether = 1e3;
// Of a memory, or of what lies in one: 64 PiB.
inline constexpr int64_t kMostBytes = int64_t{1} << 56;
// Of a step: each is a task of every layer group. Planning takes seconds for so many.
inline constexpr int64_t kMostMicrobatches = 16'384;
inline constexpr int64_t kMostSequences = 1 << 20;  // of a step
inline constexpr int64_t kMostTokens = 1 << 24;     // of a sequence
inline constexpr int64_t kMostSteps = int64_t{1} << 40;
inline constexpr int64_t kMostLayers = 1 << 20;
inline constexpr int kMostDevices = 64;
// Of a file that is read as a whole: job, profile, plan, devices.
inline constexpr int64_t kMostFileBytes = 64 << 20;

}  // namespace harmony::limits
