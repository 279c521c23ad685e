#pragma once

// The vector loops, over an instruction set given as a type with
//   Floats, kWidth                    a register of kWidth floats (16 or 8)
//   Set, Load, Store, Add, Sub, Mul, Div, Sqrt
//   Doubles, SetDouble, AddSquare(accumulators, floats), StoreDoubles
// Included by one source file per instruction set.

#include "worker/optimizer/element_math.h"

namespace harmony {
namespace {

constexpr int64_t kVector = kVectorElements;
// How far ahead of the loop lines are asked for: beyond a page's end the hardware does not look.
constexpr int64_t kPrefetchElements = 512;

inline int64_t WholeVectorsEnd(const UpdateRange& r) {
  return r.begin + (r.end - r.begin) / kVector * kVector;
}

template <typename V, bool kTwoGradients>
inline typename V::Floats LoadGradient(const UpdateRange& r, int64_t i, typename V::Floats clip) {
  typename V::Floats g = V::Load(r.gradient + i);
  if (kTwoGradients) g = V::Add(g, V::Load(r.second_gradient + i));
  return V::Mul(g, clip);
}

// As SaveElements, for a whole vector.
template <typename V, bool kMoments>
inline void SaveVector(const UpdateRange& r, int64_t i) {
  const uint64_t vector = static_cast<uint64_t>(i - r.cursor_base) / kVectorElements;
  UndoSlot& slot = r.cursor->slots[vector % 2];
  for (int64_t k = 0; k < kVector; k += V::kWidth) {
    V::Store(slot.w + k, V::Load(r.w + i + k));
    if (kMoments) V::Store(slot.m + k, V::Load(r.m + i + k));
    if (kMoments) V::Store(slot.v + k, V::Load(r.v + i + k));
  }
  asm volatile("" ::: "memory");
  r.cursor->position.store(vector + 1, std::memory_order_relaxed);
  asm volatile("" ::: "memory");
}

template <typename V, bool kTwoGradients, bool kProtected>
void AdamWLoop(const UpdateRange& range, const AdamWConstants& c) {
  using F = typename V::Floats;
  const UpdateRange r = range;  // a copy: stores through float pointers cannot touch it
  const F clip = V::Set(c.clip), decay = V::Set(c.decay), beta2 = V::Set(c.beta2);
  const F one_minus_beta2 = V::Set(c.one_minus_beta2), step_size = V::Set(c.step_size);
  const F bias2_sqrt = V::Set(c.bias2_sqrt), epsilon = V::Set(c.epsilon);
  const bool from_moment = c.lerp < 0.5f;
  const F weight = V::Set(from_moment ? c.lerp : c.lerp - 1.0f);
  const int64_t end = WholeVectorsEnd(r);
  for (int64_t i = r.begin; i < end; i += kVector) {
    __builtin_prefetch(r.w + i + kPrefetchElements, 1);
    __builtin_prefetch(r.m + i + kPrefetchElements, 1);
    __builtin_prefetch(r.v + i + kPrefetchElements, 1);
    __builtin_prefetch(r.gradient + i + kPrefetchElements, 0);
    if (kTwoGradients) __builtin_prefetch(r.second_gradient + i + kPrefetchElements, 0);
    if (kProtected) SaveVector<V, true>(r, i);
    for (int64_t k = i; k < i + kVector; k += V::kWidth) {
      const F g = LoadGradient<V, kTwoGradients>(r, k, clip);
      const F old_m = V::Load(r.m + k);
      const F w = V::Mul(V::Load(r.w + k), decay);
      const F m = V::Add(from_moment ? old_m : g, V::Mul(weight, V::Sub(g, old_m)));
      const F v = V::Add(V::Mul(V::Load(r.v + k), beta2), V::Mul(V::Mul(one_minus_beta2, g), g));
      const F denominator = V::Add(V::Div(V::Sqrt(v), bias2_sqrt), epsilon);
      V::Store(r.m + k, m);
      V::Store(r.v + k, v);
      V::Store(r.w + k, V::Sub(w, V::Mul(step_size, V::Div(m, denominator))));
    }
  }
  AdamWElements(r, c, end, r.end);
}

template <typename V, bool kTwoGradients, bool kProtected>
void SgdLoop(const UpdateRange& range, const SgdConstants& c) {
  using F = typename V::Floats;
  const UpdateRange r = range;
  const F clip = V::Set(c.clip), weight_decay = V::Set(c.weight_decay);
  const F learning_rate = V::Set(c.learning_rate);
  const int64_t end = WholeVectorsEnd(r);
  for (int64_t i = r.begin; i < end; i += kVector) {
    if (kProtected) SaveVector<V, false>(r, i);
    for (int64_t k = i; k < i + kVector; k += V::kWidth) {
      const F w = V::Load(r.w + k);
      const F g = V::Add(LoadGradient<V, kTwoGradients>(r, k, clip), V::Mul(weight_decay, w));
      V::Store(r.w + k, V::Sub(w, V::Mul(learning_rate, g)));
    }
  }
  SgdElements(r, c, end, r.end);
}

template <typename V>
void AdamW(const UpdateRange& r, const AdamWConstants& c) {
  if (r.second_gradient != nullptr) {
    r.cursor != nullptr ? AdamWLoop<V, true, true>(r, c) : AdamWLoop<V, true, false>(r, c);
  } else {
    r.cursor != nullptr ? AdamWLoop<V, false, true>(r, c) : AdamWLoop<V, false, false>(r, c);
  }
}

template <typename V>
void Sgd(const UpdateRange& r, const SgdConstants& c) {
  if (r.second_gradient != nullptr) {
    r.cursor != nullptr ? SgdLoop<V, true, true>(r, c) : SgdLoop<V, true, false>(r, c);
  } else {
    r.cursor != nullptr ? SgdLoop<V, false, true>(r, c) : SgdLoop<V, false, false>(r, c);
  }
}

template <typename V>
double SquaredNorm(const float* a, const float* b, int64_t elements) {
  constexpr int kRegisters = static_cast<int>(kVector) / V::kDoubleWidth;
  typename V::Doubles sums[kRegisters];
  for (auto& sum : sums) sum = V::SetDouble(0);
  const int64_t end = elements / kVector * kVector;
  for (int64_t i = 0; i < end; i += kVector) {
    for (int64_t k = 0; k < kVector; k += V::kWidth) {
      typename V::Floats g = V::Load(a + i + k);
      if (b != nullptr) g = V::Add(g, V::Load(b + i + k));
      V::AddSquare(&sums[k / V::kDoubleWidth], g);
    }
  }
  NormLanes lanes;
  for (int j = 0; j < kRegisters; ++j) V::StoreDoubles(lanes.lane + j * V::kDoubleWidth, sums[j]);
  for (int64_t i = end; i < elements; ++i) lanes.Add(a, b, i);
  return lanes.Sum();
}

}  // namespace
}  // namespace harmony
