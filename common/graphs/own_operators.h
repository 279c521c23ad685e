#pragma once

// The operators of graphs that are not LibTorch's (docs/model_format.md says what they compute).

#include <algorithm>
#include <array>

#include "absl/strings/string_view.h"

namespace harmony::graphs {

inline constexpr char kAttention[] = "harmony::attention";
inline constexpr char kAttentionBackward[] = "harmony::attention_backward";
inline constexpr char kBatchNorm[] = "harmony::batch_norm";
inline constexpr char kBatchNormBackward[] = "harmony::batch_norm_backward";
inline constexpr char kDropoutMask[] = "harmony::dropout_mask";
inline constexpr char kGated[] = "harmony::gated";
inline constexpr char kGatedBackward[] = "harmony::gated_backward";
inline constexpr char kGroupNorm[] = "harmony::group_norm";
inline constexpr char kGroupNormBackward[] = "harmony::group_norm_backward";
inline constexpr char kLayerNorm[] = "harmony::layer_norm";
inline constexpr char kLayerNormBackward[] = "harmony::layer_norm_backward";
inline constexpr char kLinearCrossEntropy[] = "harmony::linear_cross_entropy";
inline constexpr char kProduct[] = "harmony::product";
inline constexpr char kRmsNorm[] = "harmony::rms_norm";
inline constexpr char kRmsNormBackward[] = "harmony::rms_norm_backward";
inline constexpr char kRotary[] = "harmony::rotary";
inline constexpr char kRotaryBackward[] = "harmony::rotary_backward";

// Pointers, for UBSan lets no text made of one be a constant.
inline constexpr std::array<const char*, 17> kOwnOperators = {
    kAttention,         kAttentionBackward,
    kBatchNorm,         kBatchNormBackward,
    kDropoutMask,       kGated,
    kGatedBackward,     kGroupNorm,
    kGroupNormBackward, kLayerNorm,
    kLayerNormBackward, kLinearCrossEntropy,
    kProduct,           kRmsNorm,
    kRmsNormBackward,   kRotary,
    kRotaryBackward};
inline bool IsOwnOperator(absl::string_view name) {
  return std::find(kOwnOperators.begin(), kOwnOperators.end(), name) != kOwnOperators.end();
}

}  // namespace harmony::graphs
