#pragma once

// The vector loops, over an instruction set given as a type with
//   Floats, kWidth                    a register of kWidth floats (16 or 8)
//   Set, Load, Store, StoreBf16 (as RoundToBf16), Add, Sub, Mul, Div, Sqrt
//   Doubles, SetDouble, AddSquare(accumulators, floats), StoreDoubles
// Included by one source file per instruction set.

#include <type_traits>

#include "worker/optimizer/element_math.h"

namespace harmony::worker {
namespace {

constexpr int64_t kVector = ipc::kVectorElements;
// How far ahead of the loop lines are asked for: beyond a page's end the hardware does not look.
constexpr int64_t kPrefetchElements = 512;

inline int64_t WholeVectorsEnd(const UpdateRange& r) {
  return r.begin + (r.end - r.begin) / kVector * kVector;
}

// The sum of two gradients of type T.
template <typename V, typename T>
typename V::Floats AddGradients(typename V::Floats a, typename V::Floats b) {
  const typename V::Floats sum = V::Add(a, b);
  if constexpr (std::is_same_v<T, float>) {
    return sum;
  } else {
    T rounded[V::kWidth];
    V::StoreBf16(rounded, sum);
    return V::Load(rounded);
  }
}

// The gradients of a loop, of type T (float, or uint16_t for bf16), added up. One, and two whose
// sum is not rounded (tied blocks), by far the most common numbers, have loops of their own that
// keep the pointers in registers; kCount 0 is any number.
template <typename V, typename T, int kCount>
class Gradients {
 public:
  explicit Gradients(const GradientTerms& terms)
      : first_(NumbersOf<T>(terms, 0)),
        second_(kCount == 2 ? NumbersOf<T>(terms, 1) : nullptr),
        terms_(terms) {}

  typename V::Floats Load(int64_t i) const {
    typename V::Floats g = V::Load(first_ + i);
    if (kCount == 2) g = V::Add(g, V::Load(second_ + i));
    if (kCount == 0) {
      g = OfReference(0, i);
      for (int r = 1; r < terms_.references; ++r) g = V::Add(g, OfReference(r, i));
    }
    return g;
  }
  // For sums of these: one that is not finite makes itself not a number for good. One gradient
  // alone was looked at on its device.
  static typename V::Floats Watch(typename V::Floats zero, typename V::Floats g) {
    return kCount == 1 ? zero : V::Add(zero, V::Sub(g, g));
  }
  void Prefetch(int64_t i) const {
    __builtin_prefetch(first_ + i, 0);
    if (kCount == 2) __builtin_prefetch(second_ + i, 0);
    if (kCount == 0) {
      for (int j = 1; j < terms_.references * terms_.parts; ++j) {
        __builtin_prefetch(NumbersOf<T>(terms_, j) + i, 0);
      }
    }
  }

 private:
  typename V::Floats OfReference(int reference, int64_t i) const {
    const int first = reference * terms_.parts;
    return model::SumTree(
        terms_.parts, [&](int part) { return V::Load(NumbersOf<T>(terms_, first + part) + i); },
        AddGradients<V, T>);
  }

  const T* const first_;
  const T* const second_;
  const GradientTerms terms_;
};

// Calls fn with the Gradients of the right type and number.
template <typename V, typename T, typename Fn>
auto WithGradientsOf(const GradientTerms& terms, Fn&& fn) {
  const int count = terms.references * terms.parts;
  const bool rounded = !std::is_same_v<T, float> && terms.parts > 1;
  if (count == 1) return fn(Gradients<V, T, 1>(terms));
  if (count == 2 && !rounded) return fn(Gradients<V, T, 2>(terms));
  return fn(Gradients<V, T, 0>(terms));
}
template <typename V, typename Fn>
auto WithGradients(const GradientTerms& terms, Fn&& fn) {
  return terms.bf16 ? WithGradientsOf<V, uint16_t>(terms, fn)
                    : WithGradientsOf<V, float>(terms, fn);
}

template <typename V>
void ReportNotFinite(const UpdateRange& r, typename V::Floats watched) {
  float zeros[V::kWidth];
  V::Store(zeros, watched);
  for (float zero : zeros) {
    if (zero != 0 && r.not_finite != nullptr) r.not_finite->store(true, std::memory_order_relaxed);
  }
}

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

template <typename V, bool kProtected, typename G>
void AdamWLoop(const UpdateRange& range, const G& all, const AdamWConstants& c) {
  using F = typename V::Floats;
  const UpdateRange r = range;  // a copy: stores through float pointers cannot touch it
  const G gradients = all;
  const F clip = V::Set(c.clip), decay = V::Set(c.decay), beta2 = V::Set(c.beta2);
  const F one_minus_beta2 = V::Set(c.one_minus_beta2), step_size = V::Set(c.step_size);
  const F bias2_sqrt = V::Set(c.bias2_sqrt), epsilon = V::Set(c.epsilon);
  const bool from_moment = c.lerp < 0.5f;
  const F weight = V::Set(from_moment ? c.lerp : c.lerp - 1.0f);
  F watched = V::Set(0);
  const int64_t end = WholeVectorsEnd(r);
  for (int64_t i = r.begin; i < end; i += kVector) {
    __builtin_prefetch(r.w + i + kPrefetchElements, 1);
    __builtin_prefetch(r.m + i + kPrefetchElements, 1);
    __builtin_prefetch(r.v + i + kPrefetchElements, 1);
    gradients.Prefetch(i + kPrefetchElements);
    if (kProtected) SaveVector<V, 2>(r, i);
    for (int64_t k = i; k < i + kVector; k += V::kWidth) {
      const F sum = gradients.Load(k);
      watched = G::Watch(watched, sum);
      const F g = V::Mul(sum, clip);
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
  ReportNotFinite<V>(r, watched);
  AdamWElements(r, c, end, r.end);
}

template <typename V, bool kProtected, bool kMomentum, typename G>
void SgdLoop(const UpdateRange& range, const G& all, const SgdConstants& c) {
  using F = typename V::Floats;
  const UpdateRange r = range;
  const G gradients = all;
  const F clip = V::Set(c.clip), weight_decay = V::Set(c.weight_decay);
  const F learning_rate = V::Set(c.learning_rate), momentum = V::Set(c.momentum);
  F watched = V::Set(0);
  const int64_t end = WholeVectorsEnd(r);
  for (int64_t i = r.begin; i < end; i += kVector) {
    if (kProtected) SaveVector<V, kMomentum ? 1 : 0>(r, i);
    for (int64_t k = i; k < i + kVector; k += V::kWidth) {
      const F w = V::Load(r.w + k);
      const F sum = gradients.Load(k);
      watched = G::Watch(watched, sum);
      F g = V::Add(V::Mul(sum, clip), V::Mul(weight_decay, w));
      if (kMomentum) {
        const F m = V::Add(V::Mul(V::Load(r.m + k), momentum), g);
        V::Store(r.m + k, m);
        g = c.nesterov ? V::Add(g, V::Mul(momentum, m)) : m;
      }
      StoreWeights<V>(r, k, V::Sub(w, V::Mul(learning_rate, g)));
    }
  }
  ReportNotFinite<V>(r, watched);
  SgdElements(r, c, end, r.end);
}

template <typename V, bool kProtected, typename G>
void SgdWith(const UpdateRange& r, const G& gradients, const SgdConstants& c) {
  r.m != nullptr ? SgdLoop<V, kProtected, true>(r, gradients, c)
                 : SgdLoop<V, kProtected, false>(r, gradients, c);
}

template <typename V>
void AdamW(const UpdateRange& r, const AdamWConstants& c) {
  WithGradients<V>(r.gradients, [&](const auto& gradients) {
    r.cursor != nullptr ? AdamWLoop<V, true>(r, gradients, c)
                        : AdamWLoop<V, false>(r, gradients, c);
  });
}

template <typename V>
void Sgd(const UpdateRange& r, const SgdConstants& c) {
  WithGradients<V>(r.gradients, [&](const auto& gradients) {
    r.cursor != nullptr ? SgdWith<V, true>(r, gradients, c) : SgdWith<V, false>(r, gradients, c);
  });
}

template <typename V, typename G>
double SquaredNormOf(const GradientTerms& terms, const G& all, int64_t begin, int64_t end) {
  constexpr int kRegisters = static_cast<int>(kVector) / V::kDoubleWidth;
  typename V::Doubles sums[kRegisters];
  for (auto& sum : sums) sum = V::SetDouble(0);
  const G gradients = all;
  const int64_t whole = begin + (end - begin) / kVector * kVector;
  for (int64_t i = begin; i < whole; i += kVector) {
    for (int64_t k = 0; k < kVector; k += V::kWidth) {
      V::AddSquare(&sums[k / V::kDoubleWidth], gradients.Load(i + k));
    }
  }
  NormLanes lanes;
  for (int j = 0; j < kRegisters; ++j) V::StoreDoubles(lanes.lane + j * V::kDoubleWidth, sums[j]);
  for (int64_t i = whole; i < end; ++i) lanes.Add(terms, i, i - begin);
  return lanes.Sum();
}

template <typename V>
double SquaredNorm(const GradientTerms& terms, int64_t begin, int64_t end) {
  return WithGradients<V>(
      terms, [&](const auto& all) { return SquaredNormOf<V>(terms, all, begin, end); });
}

}  // namespace
}  // namespace harmony::worker
