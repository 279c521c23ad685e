#pragma once

// One element of each optimizer: the readable reference, and what the vector kernels do with the
// elements behind the last whole vector. Included by one source file per instruction set, hence the
// unnamed namespace: each keeps its own copy, compiled for its own target. Those files are compiled
// without contraction of multiplications and additions.

#include <bit>
#include <cmath>
#include <cstddef>

#include "common/model/sum_tree.h"
#include "worker/optimizer/kernels.h"

namespace harmony::worker {
namespace {

// A gradient as an array of its type.
template <typename T>
inline const T* NumbersOf(const GradientTerms& gradients, int term) {
  const auto* const begin = static_cast<const std::byte*>(gradients.data[term]);
  return reinterpret_cast<const T*>(begin + gradients.shift.count());
}

inline float GradientOf(const GradientTerms& gradients, int term, int64_t i) {
  if (!gradients.bf16) return NumbersOf<float>(gradients, term)[i];
  return std::bit_cast<float>(uint32_t{NumbersOf<uint16_t>(gradients, term)[i]} << 16);
}

// What is not a number stays so: rounding could turn it into infinity.
inline uint16_t RoundToBf16(float x) {
  if (x != x) return 0x7fc0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float SumOfGradients(const GradientTerms& gradients, int64_t i) {
  const auto add = [&](float a, float b) {
    if (!gradients.bf16) return a + b;
    return std::bit_cast<float>(uint32_t{RoundToBf16(a + b)} << 16);
  };
  float g = 0;
  for (int r = 0; r < gradients.references; ++r) {
    const int first = r * gradients.parts;
    const float of_reference = model::SumTree(
        gradients.parts, [&](int part) { return GradientOf(gradients, first + part, i); }, add);
    g = r == 0 ? of_reference : g + of_reference;
  }
  return g;
}

inline float GradientElement(const UpdateRange& r, float clip, int64_t i) {
  const float sum = SumOfGradients(r.gradients, i);
  const bool several = r.gradients.references * r.gradients.parts > 1;
  if (several && r.not_finite != nullptr && !std::isfinite(sum)) {
    r.not_finite->store(true, std::memory_order_relaxed);
  }
  return sum * clip;
}

inline void StoreWeight(const UpdateRange& r, int64_t i, float w) {
  r.w[i] = w;
  if (r.copy != nullptr) r.copy[i] = RoundToBf16(w);
}

inline void AdamWElement(const UpdateRange& r, const AdamWConstants& c, int64_t i) {
  const float g = GradientElement(r, c.clip, i);
  const float w = r.w[i] * c.decay;
  const float difference = g - r.m[i];
  const float m = c.lerp < 0.5f ? r.m[i] + c.lerp * difference : g + (c.lerp - 1.0f) * difference;
  const float v = r.v[i] * c.beta2 + (c.one_minus_beta2 * g) * g;
  const float denominator = std::sqrt(v) / c.bias2_sqrt + c.epsilon;
  r.m[i] = m;
  r.v[i] = v;
  StoreWeight(r, i, w - c.step_size * (m / denominator));
}

inline void SgdElement(const UpdateRange& r, const SgdConstants& c, int64_t i) {
  float g = GradientElement(r, c.clip, i) + c.weight_decay * r.w[i];
  if (r.m != nullptr) {
    const float m = r.m[i] * c.momentum + g;
    r.m[i] = m;
    g = c.nesterov ? g + c.momentum * m : m;
  }
  StoreWeight(r, i, r.w[i] - c.learning_rate * g);
}

// Keeps the old values of the vector that starts at element `i` (fewer than kVectorElements at the
// end of a block), then says so in the cursor. In program order: that is what a kill respects.
template <int kMoments>
inline void SaveElements(const UpdateRange& r, int64_t i, int64_t count) {
  const uint64_t vector = static_cast<uint64_t>(i - r.cursor_base) / ipc::kVectorElements;
  ipc::UndoSlot& slot = r.cursor->slots[vector % 2];
  for (int64_t k = 0; k < count; ++k) {
    slot.w[k] = r.w[i + k];
    if (kMoments > 0) slot.m[k] = r.m[i + k];
    if (kMoments > 1) slot.v[k] = r.v[i + k];
  }
  asm volatile("" ::: "memory");
  r.cursor->position.store(vector + 1, std::memory_order_relaxed);
  asm volatile("" ::: "memory");
}

inline void AdamWElements(const UpdateRange& r, const AdamWConstants& c, int64_t i, int64_t end) {
  if (i < end && r.cursor != nullptr) SaveElements<2>(r, i, end - i);
  for (; i < end; ++i) AdamWElement(r, c, i);
}

inline void SgdElements(const UpdateRange& r, const SgdConstants& c, int64_t i, int64_t end) {
  if (i < end && r.cursor != nullptr) {
    r.m != nullptr ? SaveElements<1>(r, i, end - i) : SaveElements<0>(r, i, end - i);
  }
  for (; i < end; ++i) SgdElement(r, c, i);
}

struct NormLanes {
  double lane[ipc::kVectorElements] = {};

  // The sum of the gradients at element `i`, the `k`-th of the range.
  void Add(const GradientTerms& gradients, int64_t i, int64_t k) {
    const double g = SumOfGradients(gradients, i);
    lane[k % static_cast<int64_t>(ipc::kVectorElements)] += g * g;  // g * g is exact in double
  }
  double Sum() const {
    double sum = 0;
    for (double value : lane) sum += value;
    return sum;
  }
};

}  // namespace
}  // namespace harmony::worker
