#pragma once

// Between fp32 and the 16-bit formats of checkpoints. To fp32 is exact; from fp32 rounds to
// nearest, ties to even, so a value that came from a 16-bit format returns to the same bits (NaN
// payloads included).

#include <bit>
#include <cstdint>

#include "absl/types/span.h"

namespace harmony::io {

inline float FloatFromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t Bf16FromFloat(float value);
float FloatFromF16(uint16_t bits);
uint16_t F16FromFloat(float value);

// REQUIRES: equal sizes.
void FloatsFromBf16(absl::Span<const uint16_t> in, absl::Span<float> out);
void FloatsFromF16(absl::Span<const uint16_t> in, absl::Span<float> out);
void Bf16FromFloats(absl::Span<const float> in, absl::Span<uint16_t> out);
void F16FromFloats(absl::Span<const float> in, absl::Span<uint16_t> out);

}  // namespace harmony::io
