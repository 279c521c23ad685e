#include "common/io/float_convert.h"

#include <cstddef>

namespace harmony::io {

uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: rounding could turn it into infinity
    const uint16_t upper = static_cast<uint16_t>(bits >> 16);
    return (upper & 0x7fu) != 0 ? upper : static_cast<uint16_t>(upper | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float FloatFromF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Subnormal: mantissa * 2^-24, exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t F16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    const uint16_t mantissa = static_cast<uint16_t>((magnitude >> 13) & 0x3ffu);
    return static_cast<uint16_t>(sign | 0x7c00u | (mantissa != 0 ? mantissa : 0x200u));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal or zero
    // Adding 2^-1 puts the value's multiple of 2^-24 into the low mantissa bits, rounded to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void FloatsFromBf16(absl::Span<const uint16_t> in, absl::Span<float> out) {
  for (size_t i = 0; i < in.size(); ++i) out[i] = FloatFromBf16(in[i]);
}
void FloatsFromF16(absl::Span<const uint16_t> in, absl::Span<float> out) {
  for (size_t i = 0; i < in.size(); ++i) out[i] = FloatFromF16(in[i]);
}
void Bf16FromFloats(absl::Span<const float> in, absl::Span<uint16_t> out) {
  for (size_t i = 0; i < in.size(); ++i) out[i] = Bf16FromFloat(in[i]);
}
void F16FromFloats(absl::Span<const float> in, absl::Span<uint16_t> out) {
  for (size_t i = 0; i < in.size(); ++i) out[i] = F16FromFloat(in[i]);
}

}  // namespace harmony::io
