#pragma once

// Counter-based random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A draw depends on (key, counter) only, never on who draws or in which order,
// so results do not change with the number of devices, threads or restarts.

#include <array>
#include <cstdint>

namespace harmony {

// What Philox4x32-10 multiplies by, what it adds to the key, and how often: for who draws several
// blocks at a time.
struct PhiloxConstants {
  uint32_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
  uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;
  int rounds = 10;
};
inline constexpr PhiloxConstants kPhilox;

// One block of four 32-bit random words for a 64-bit key and a 128-bit counter.
std::array<uint32_t, 4> Philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high);

// Two independent standard normal values for a counter (Box-Muller in double, rounded to float).
std::array<float, 2> PhiloxNormal(uint64_t key, uint64_t counter_low, uint64_t counter_high);

// A small sequential generator over Philox for tests, simulation faults and shuffles.
class CounterRandom {
 public:
  explicit CounterRandom(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  uint64_t Next64();
  // Uniform in [0, bound), bound > 0.
  uint64_t Below(uint64_t bound);
  // Uniform in [0, 1).
  double NextDouble();

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t position_ = 0;
};

}  // namespace harmony
