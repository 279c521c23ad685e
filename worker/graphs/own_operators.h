#pragma once

// The operators of graphs that are not LibTorch's.

#include <algorithm>
#include <array>

#include "absl/strings/string_view.h"
#include "worker/graphs/attention.h"
#include "worker/graphs/dropout_mask.h"
#include "worker/graphs/linear_cross_entropy.h"

namespace harmony::worker {

// Pointers, for UBSan lets no text made of one be a constant.
inline constexpr std::array<const char*, 4> kOwnOperators = {kAttention, kAttentionBackward,
                                                             kDropoutMask, kLinearCrossEntropy};
inline bool IsOwnOperator(absl::string_view name) {
  return std::find(kOwnOperators.begin(), kOwnOperators.end(), name) != kOwnOperators.end();
}

// Makes them known to LibTorch's dispatcher, once. Any thread.
void RegisterOwnOperators();

}  // namespace harmony::worker
