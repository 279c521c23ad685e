#include "worker/host/init.h"

#include <algorithm>

#include "common/base/random.h"

namespace harmony::worker {

void InitializeRange(const model::TensorSpec& tensor, int block, uint64_t seed, int64_t begin,
                     absl::Span<float> out) {
  if (tensor.init != model::InitKind::kNormal) {
    std::fill(out.begin(), out.end(), tensor.init == model::InitKind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t stream =
      (static_cast<uint64_t>(block) << 32) + static_cast<uint64_t>(tensor.init_position);
  const float deviation = static_cast<float>(tensor.init_std);
  const int64_t end = begin + static_cast<int64_t>(out.size());
  // A draw gives two neighbours: elements 2k and 2k + 1.
  for (int64_t pair = begin / 2; pair * 2 < end; ++pair) {
    const auto normal = PhiloxNormal(seed, static_cast<uint64_t>(pair), stream);
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t element = pair * 2 + i;
      if (element < begin || element >= end) continue;
      out[static_cast<size_t>(element - begin)] = normal[static_cast<size_t>(i)] * deviation;
    }
  }
}

}  // namespace harmony::worker
