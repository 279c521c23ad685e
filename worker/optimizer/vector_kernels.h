#pragma once

// The vector loops, over an instruction set given as a type with
//   Floats, kWidth                    a register of kWidth floats (16 or 8)
//   Set, Load, Store, StoreBf16 (as RoundToBf16), Add, Sub, Mul, Div, Sqrt
//   Doubles, SetDouble, AddSquare(accumulators, floats), StoreDoubles
// Included by one source file per instruction set.

#include "worker/optimizer/element_math.h"

namespace harmony::worker {
namespace {

constexpr int64_t kVector = ipc::kVectorElements;
// How far ahead of the loop lines are asked for: beyond a page's end the hardware does not look.
constexpr int64_t kPrefetchElements = 512;

inline int64_t WholeVectorsEnd(const UpdateRange& r) {
  return r.begin + (r.end - r.begin) / kVector * kVector;
}

// The gradients of a loop, added up in order. One and two (tied blocks), by far the most common
// numbers, have loops of their own that keep the pointers in registers; kCount 0 is any number.
template <typename V, int kCount>
class Gradients {
 public:
  Gradients(const float* const* all, int count)
      : first_(all[0]), second_(kCount == 2 ? all[1] : nullptr), all_(all), count_(count) {}

  typename V::Floats Load(int64_t i) const {
    typename V::Floats g = V::Load(first_ + i);
    if (kCount == 2) g = V::Add(g, V::Load(second_ + i));
    if (kCount == 0) {
      for (int j = 1; j < count_; ++j) g = V::Add(g, V::Load(all_[j] + i));
    }
    return g;
  }
  void Prefetch(int64_t i) const {
    __builtin_prefetch(first_ + i, 0);
    if (kCount == 2) __builtin_prefetch(second_ + i, 0);
    if (kCount == 0) {
      for (int j = 1; j < count_; ++j) __builtin_prefetch(all_[j] + i, 0);
    }
  }

 private:
  const float* const first_;
  const float* const second_;
  const float* const* const all_;
  const int count_;
};

// As SaveElements, for a whole vector.
template <typename V, int kMoments>
inline void SaveVector(const UpdateRange& r, int64_t i) {
  const uint64_t vector = static_cast<uint64_t>(i - r.cursor_base) / ipc::kVectorElements;
  ipc::UndoSlot& slot = r.cursor->slots[vector % 2];
  for (int64_t k = 0; k < kVector; k += V::kWidth) {
    V::Store(slot.w + k, V::Load(r.w + i + k));
    if (kMoments > 0) V::Store(slot.m + k, V::Load(r.m + i + k));
    if (kMoments > 1) V::Store(slot.v + k, V::Load(r.v + i + k));
  }
  asm volatile("" ::: "memory");
  r.cursor->position.store(vector + 1, std::memory_order_relaxed);
  asm volatile("" ::: "memory");
}

template <typename V>
inline void StoreWeights(const UpdateRange& r, int64_t i, typename V::Floats w) {
  V::Store(r.w + i, w);
  if (r.copy != nullptr) V::StoreBf16(r.copy + i, w);
}

template <typename V, int kGradients, bool kProtected>
void AdamWLoop(const UpdateRange& range, const AdamWConstants& c) {
  using F = typename V::Floats;
  const UpdateRange r = range;  // a copy: stores through float pointers cannot touch it
  const Gradients<V, kGradients> gradients(r.gradients, r.num_gradients);
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
    gradients.Prefetch(i + kPrefetchElements);
    if (kProtected) SaveVector<V, 2>(r, i);
    for (int64_t k = i; k < i + kVector; k += V::kWidth) {
      const F g = V::Mul(gradients.Load(k), clip);
      const F old_m = V::Load(r.m + k);
      const F w = V::Mul(V::Load(r.w + k), decay);
      const F m = V::Add(from_moment ? old_m : g, V::Mul(weight, V::Sub(g, old_m)));
      const F v = V::Add(V::Mul(V::Load(r.v + k), beta2), V::Mul(V::Mul(one_minus_beta2, g), g));
      const F denominator = V::Add(V::Div(V::Sqrt(v), bias2_sqrt), epsilon);
      V::Store(r.m + k, m);
      V::Store(r.v + k, v);
      StoreWeights<V>(r, k, V::Sub(w, V::Mul(step_size, V::Div(m, denominator))));
    }
  }
  AdamWElements(r, c, end, r.end);
}

template <typename V, int kGradients, bool kProtected, bool kMomentum>
void SgdLoop(const UpdateRange& range, const SgdConstants& c) {
  using F = typename V::Floats;
  const UpdateRange r = range;
  const Gradients<V, kGradients> gradients(r.gradients, r.num_gradients);
  const F clip = V::Set(c.clip), weight_decay = V::Set(c.weight_decay);
  const F learning_rate = V::Set(c.learning_rate), momentum = V::Set(c.momentum);
  const int64_t end = WholeVectorsEnd(r);
  for (int64_t i = r.begin; i < end; i += kVector) {
    if (kProtected) SaveVector<V, kMomentum ? 1 : 0>(r, i);
    for (int64_t k = i; k < i + kVector; k += V::kWidth) {
      const F w = V::Load(r.w + k);
      F g = V::Add(V::Mul(gradients.Load(k), clip), V::Mul(weight_decay, w));
      if (kMomentum) {
        const F m = V::Add(V::Mul(V::Load(r.m + k), momentum), g);
        V::Store(r.m + k, m);
        g = c.nesterov ? V::Add(g, V::Mul(momentum, m)) : m;
      }
      StoreWeights<V>(r, k, V::Sub(w, V::Mul(learning_rate, g)));
    }
  }
  SgdElements(r, c, end, r.end);
}

template <typename V, int kGradients>
void AdamWOf(const UpdateRange& r, const AdamWConstants& c) {
  r.cursor != nullptr ? AdamWLoop<V, kGradients, true>(r, c)
                      : AdamWLoop<V, kGradients, false>(r, c);
}

template <typename V, int kGradients, bool kMomentum>
void SgdWith(const UpdateRange& r, const SgdConstants& c) {
  r.cursor != nullptr ? SgdLoop<V, kGradients, true, kMomentum>(r, c)
                      : SgdLoop<V, kGradients, false, kMomentum>(r, c);
}

template <typename V, int kGradients>
void SgdOf(const UpdateRange& r, const SgdConstants& c) {
  r.m != nullptr ? SgdWith<V, kGradients, true>(r, c) : SgdWith<V, kGradients, false>(r, c);
}

template <typename V>
void AdamW(const UpdateRange& r, const AdamWConstants& c) {
  if (r.num_gradients == 1) return AdamWOf<V, 1>(r, c);
  if (r.num_gradients == 2) return AdamWOf<V, 2>(r, c);
  AdamWOf<V, 0>(r, c);
}

template <typename V>
void Sgd(const UpdateRange& r, const SgdConstants& c) {
  if (r.num_gradients == 1) return SgdOf<V, 1>(r, c);
  if (r.num_gradients == 2) return SgdOf<V, 2>(r, c);
  SgdOf<V, 0>(r, c);
}

template <typename V, int kGradients>
double SquaredNormOf(const float* const* all, int count, int64_t begin, int64_t end) {
  constexpr int kRegisters = static_cast<int>(kVector) / V::kDoubleWidth;
  typename V::Doubles sums[kRegisters];
  for (auto& sum : sums) sum = V::SetDouble(0);
  const Gradients<V, kGradients> gradients(all, count);
  const int64_t whole = begin + (end - begin) / kVector * kVector;
  for (int64_t i = begin; i < whole; i += kVector) {
    for (int64_t k = 0; k < kVector; k += V::kWidth) {
      V::AddSquare(&sums[k / V::kDoubleWidth], gradients.Load(i + k));
    }
  }
  NormLanes lanes;
  for (int j = 0; j < kRegisters; ++j) V::StoreDoubles(lanes.lane + j * V::kDoubleWidth, sums[j]);
  for (int64_t i = whole; i < end; ++i) lanes.Add(all, count, i, i - begin);
  return lanes.Sum();
}

template <typename V>
double SquaredNorm(const float* const* gradients, int count, int64_t begin, int64_t end) {
  if (count == 1) return SquaredNormOf<V, 1>(gradients, count, begin, end);
  if (count == 2) return SquaredNormOf<V, 2>(gradients, count, begin, end);
  return SquaredNormOf<V, 0>(gradients, count, begin, end);
}

}  // namespace
}  // namespace harmony::worker
