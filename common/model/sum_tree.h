#pragma once

// The order in which the gradients of a step are added up. It is a job's, so that neither the
// number of devices nor what runs where changes a bit:
//
//   The microbatches of a replica are added up in order. Replicas, a power of two of them, are
//   added up pairwise: 0 and 1, 2 and 3, ..., then those sums pairwise, and so on. Where gradients
//   leave the devices as bf16, every sum of this tree is rounded to it.
//
// A device that runs an aligned range of replicas (0-3, or 4-5) adds up their part of the tree by
// itself and sends one gradient, to the host or to a device that has added up the range beside it
// (plan::SumOf); the host adds up the parts in the tree that is left. To go through a range in
// order, a device keeps the sums that wait for their other half: of replica number j of the range
// one for each bit that is set in j. PURE.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace harmony::model {

// Sums that wait, in the order in which they were made, while replica number `replica` of a range
// is added up. The next gradient buffer, of number WaitingSums, is that replica's own.
constexpr int WaitingSums(int replica) { return std::popcount(static_cast<uint32_t>(replica)); }

// When the replica is complete it is added to the last waiting sum, the result to the one before:
// that often.
constexpr int AdditionsAfter(int replica) {
  return std::countr_one(static_cast<uint32_t>(replica));
}

// Gradient buffers that a range of so many replicas needs. REQUIRES: a power of two.
constexpr int SumBuffers(int replicas) {
  return std::countr_zero(static_cast<uint32_t>(replicas)) + 1;
}

// The tree over terms 0 to count - 1, which are terms of it themselves or parts that were added up
// before. `add(a, b)` is their sum, rounded where sums are. REQUIRES: `count` is a power of two, at
// most 2^30.
template <typename Term, typename Add>
auto SumTree(int count, Term&& term, Add&& add) {
  auto sum = term(0);
  decltype(sum) waiting[30];
  int top = 0;
  for (int i = 1; i < count; ++i) {
    waiting[top++] = sum;
    sum = term(i);
    for (int left = AdditionsAfter(i); left > 0; --left) sum = add(waiting[--top], sum);
  }
  return sum;
}

// Of what each microbatch of a step adds, such as its loss. REQUIRES: the replicas divide them.
inline double SumOfMicrobatches(absl::Span<const double> microbatches, int replicas) {
  const size_t of_replica = microbatches.size() / static_cast<size_t>(replicas);
  return SumTree(
      replicas,
      [&](int replica) {
        double sum = 0;
        for (double x : microbatches.subspan(static_cast<size_t>(replica) * of_replica, of_replica))
          sum += x;
        return sum;
      },
      [](double a, double b) { return a + b; });
}

constexpr bool IsPowerOfTwo(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace harmony::model
