#pragma once

// Numbers as the bodies of row_bodies.h and rotary_bodies.h read and write them; compiled by GCC
// and by nvcc.

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define HARMONY_ON_ALL __host__ __device__ inline
#else
#define HARMONY_ON_ALL inline
#endif

namespace harmony::worker::rows {

struct Bf16 {
  uint16_t bits;
};

HARMONY_ON_ALL float Widen(float x) { return x; }
HARMONY_ON_ALL float Widen(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

HARMONY_ON_ALL void Round(float x, float* to) { *to = x; }
// To the nearest, ties to even.
HARMONY_ON_ALL void Round(float x, Bf16* to) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  constexpr uint32_t kInfinity = 0x7F800000, kQuietNan = 0x7FC0;
  const bool nan = (bits & 0x7FFFFFFF) > kInfinity;
  to->bits = static_cast<uint16_t>(nan ? kQuietNan : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
template <typename T>
HARMONY_ON_ALL float Rounded(float x) {
  T narrow;
  Round(x, &narrow);
  return Widen(narrow);
}

// A GPU's division of 64 bits takes longer than all the rest of a small body.
HARMONY_ON_ALL int64_t Quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// So many numbers that are read or written at once, from an address that is a multiple of 16 where
// they are several.
template <typename T, int P>
struct alignas(P == 1 ? alignof(T) : 16) Pack {
  T numbers[P];
};

template <int P, typename T>
HARMONY_ON_ALL void Load(const T* from, float (&to)[P]) {
  const Pack<T, P> pack = *reinterpret_cast<const Pack<T, P>*>(from);
  for (int i = 0; i < P; ++i) to[i] = Widen(pack.numbers[i]);
}
template <int P, typename T>
HARMONY_ON_ALL void Store(const float (&from)[P], T* to) {
  Pack<T, P> pack;
  for (int i = 0; i < P; ++i) Round(from[i], &pack.numbers[i]);
  *reinterpret_cast<Pack<T, P>*>(to) = pack;
}
// Those at `from`, or the same number so many times where that is null.
template <int P, typename T>
HARMONY_ON_ALL void LoadOr(float otherwise, const T* from, int64_t at, float (&to)[P]) {
  if (from != nullptr) return Load<P>(from + at, to);
  for (int i = 0; i < P; ++i) to[i] = otherwise;
}

}  // namespace harmony::worker::rows
