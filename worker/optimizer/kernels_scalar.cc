// The reference: every other variant is tested for bit equality with this one.

#include <algorithm>

#include "worker/optimizer/element_math.h"

namespace harmony::worker {
namespace {

constexpr int64_t kVector = ipc::kVectorElements;

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

double SquaredNorm(const GradientTerms& gradients, int64_t begin, int64_t end) {
  NormLanes lanes;
  for (int64_t i = begin; i < end; ++i) lanes.Add(gradients, i, i - begin);
  return lanes.Sum();
}

}  // namespace

const Kernels kScalarKernels = {AdamW, Sgd, SquaredNorm};

}  // namespace harmony::worker
