// The reference: every other variant is tested for bit equality with this one.

#include <algorithm>

#include "worker/optimizer/element_math.h"

namespace harmony {
namespace {

constexpr int64_t kVector = kVectorElements;

void AdamW(const UpdateRange& r, const AdamWConstants& c) {
  for (int64_t i = r.begin; i < r.end; i += kVector) {
    AdamWElements(r, c, i, std::min(i + kVector, r.end));
  }
}

void Sgd(const UpdateRange& r, const SgdConstants& c) {
  for (int64_t i = r.begin; i < r.end; i += kVector) {
    SgdElements(r, c, i, std::min(i + kVector, r.end));
  }
}

double SquaredNorm(const float* a, const float* b, int64_t elements) {
  NormLanes lanes;
  for (int64_t i = 0; i < elements; ++i) lanes.Add(a, b, i);
  return lanes.Sum();
}

}  // namespace

const Kernels kScalarKernels = {AdamW, Sgd, SquaredNorm};

}  // namespace harmony
