#pragma once

// Attention for devices that are no CPU: by LibTorch's fused kernels where it has one that computes
// the same bits each time, flash attention for 16 bits and memory-efficient attention for fp32, and
// in pieces (attention_in_pieces.h) where it has none. Which one it is depends on shapes and types
// alone. What they compute is what docs/model_format.md says of harmony::attention. bench/gpu
// measures the kernels: as exact as the pieces, and ten times as fast and more.

#include <ATen/core/Tensor.h>

#include <optional>

#include "worker/models/attention_in_pieces.h"

namespace harmony::worker {

AttentionResults DeviceAttention(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, bool causal,
                                 const std::optional<at::Tensor>& mask,
                                 std::optional<double> scale);
// `logarithms` are those of DeviceAttention.
AttentionBackwardResults DeviceAttentionBackward(const at::Tensor& gradient,
                                                 const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, const at::Tensor& output,
                                                 const at::Tensor& logarithms, bool causal,
                                                 const std::optional<at::Tensor>& mask,
                                                 std::optional<double> scale);

enum class FusedKernel { kNone, kFlash, kMemoryEfficient };

// For arguments on a GPU of so many multiprocessors.
FusedKernel KernelFor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      bool causal, const std::optional<at::Tensor>& mask, int multiprocessors);

// Fused kernels are used from now on, on a GPU of so many multiprocessors. Once, before all else.
void UseFusedAttention(int multiprocessors);

}  // namespace harmony::worker
