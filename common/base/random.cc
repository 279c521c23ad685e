#include "common/base/random.h"

#include <cmath>
#include <numbers>

namespace harmony {

std::array<uint32_t, 4> Philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c = {
      static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
      static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < kPhilox.rounds; ++round) {
    const uint64_t p0 = uint64_t{kPhilox.multiplier0} * c[0];
    const uint64_t p1 = uint64_t{kPhilox.multiplier1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kPhilox.weyl0;
    k1 += kPhilox.weyl1;
  }
  return c;
}

std::array<float, 2> PhiloxNormal(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  const auto words = Philox4x32(key, counter_low, counter_high);
  const uint64_t a = (uint64_t{words[0]} << 32) | words[1];
  const uint64_t b = (uint64_t{words[2]} << 32) | words[3];
  // (0, 1]: the logarithm below must not see zero.
  const double u = (static_cast<double>(a >> 11) + 1.0) * 0x1.0p-53;
  const double v = static_cast<double>(b >> 11) * 0x1.0p-53;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

uint64_t CounterRandom::Next64() {
  const auto words = Philox4x32(seed_, position_++, stream_);
  return (uint64_t{words[0]} << 32) | words[1];
}

uint64_t CounterRandom::Below(uint64_t bound) {
  // Multiply-shift (Lemire); the bias is below 2^-32 for the small bounds used here.
  return static_cast<uint64_t>((static_cast<unsigned __int128>(Next64()) * bound) >> 64);
}

double CounterRandom::NextDouble() { return static_cast<double>(Next64() >> 11) * 0x1.0p-53; }

}  // namespace harmony
