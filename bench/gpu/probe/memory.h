#pragma once

// The memory that copies move between: regions of device memory that outlive their makers, and
// shared host memory, pinned in chunks.

#include <cuda.h>

#include <cstdint>
#include <string>

namespace harmony::bench {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
// No copy spans two pins, and none of them is larger: large ones stall other processes.
inline constexpr uint64_t kPinChunk = 256 * kMiB;

enum class Pages { kSmall, kTransparentHuge, kHugetlb };

// A descriptor of new shared memory, or -1 where the machine has no such pages.
int NewHostMemory(uint64_t bytes, Pages pages);
// Null where it cannot be mapped.
char* MapHostMemory(int descriptor, uint64_t bytes, Pages pages);
void UnmapHostMemory(char* memory, uint64_t bytes);
// The share of its pages that are transparent huge ones, by /proc/self/smaps.
double HugeShare(const char* memory, uint64_t bytes);

// Random words that depend on `seed` and their place only.
uint64_t RandomWord(uint64_t seed, uint64_t index);
void FillRandom(char* memory, uint64_t bytes, uint64_t seed);
// The offset of the first difference from what FillRandom writes; `bytes` when there is none.
uint64_t FirstDifference(const char* memory, uint64_t bytes, uint64_t seed);

// Pins `bytes` at `memory` in calls of at most `chunk`; so must the calls of Unpin be.
void Pin(char* memory, uint64_t bytes, uint64_t chunk = kPinChunk);
void Unpin(char* memory, uint64_t bytes, uint64_t chunk = kPinChunk);

// Shared memory of small pages, filled at random, since what is registered in Harmony exists, and
// pinned.
char* NewPinnedMemory(uint64_t bytes);

// What a region is made as, and how it is mapped.
CUmemAllocationProp RegionProperties();
uint64_t RegionGranularity();
// Maps a region that another process made. Needs a context. Seconds of the two steps, where asked.
CUdeviceptr ImportRegion(int descriptor, uint64_t bytes, double* import_seconds = nullptr,
                         double* map_seconds = nullptr);

}  // namespace harmony::bench
