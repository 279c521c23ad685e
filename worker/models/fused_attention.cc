#include "worker/models/fused_attention.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <utility>

#include "common/model/gpu_attention.h"
#include "common/model/layer_cost.h"

namespace harmony::worker {
namespace {

int multiprocessors_of_gpu = 0;  // 0: no fused kernels

// The kernels' backwards have the same bits each time only while LibTorch is told that it must not
// compute otherwise. It is told so for them alone: there are operations of which it has no such
// version, and which it would refuse.
class SameBitsOnly {
 public:
  SameBitsOnly()
      : was_(at::globalContext().deterministicAlgorithms()),
        warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~SameBitsOnly() { at::globalContext().setDeterministicAlgorithms(was_, warned_); }
  SameBitsOnly(const SameBitsOnly&) = delete;
  SameBitsOnly& operator=(const SameBitsOnly&) = delete;

 private:
  const bool was_, warned_;
};

FusedKernel ChosenFor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      bool causal, const std::optional<at::Tensor>& mask) {
  if (!query.is_cuda()) return FusedKernel::kNone;
  return KernelFor(query, key, value, causal, mask, multiprocessors_of_gpu);
}

// What the kernels read at a time.
constexpr int64_t kReadBytes = 16;

bool BeginsWhole(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kReadBytes == 0;
}

// The kernels want the numbers of a head side by side, and rows that begin where a read may. Some
// of them fail otherwise, others do not look.
at::Tensor Dense(const at::Tensor& heads) {
  const int64_t unit = kReadBytes / static_cast<int64_t>(heads.element_size());
  bool whole = heads.stride(-1) == 1 && BeginsWhole(heads);
  for (int64_t d = 0; d + 1 < heads.dim(); ++d) {
    whole = whole && (heads.size(d) == 1 || heads.stride(d) % unit == 0);
  }
  return whole ? heads : heads.clone(at::MemoryFormat::Contiguous);
}

// [N, H, L, ...] with the heads behind the rows in memory, as the CPU's kernels leave it.
at::Tensor HeadsBehindRows(const at::Tensor& heads) {
  const at::Tensor rows = heads.transpose(1, 2).contiguous();
  return (BeginsWhole(rows) ? rows : rows.clone(at::MemoryFormat::Contiguous)).transpose(1, 2);
}

// Results lie in memory as the CPU's do, since graphs take views of them.
at::Tensor LyingAs(const at::Tensor& like, const at::Tensor& tensor) {
  const at::Tensor shape = at::empty_like(like, like.options().device(at::kMeta));
  return shape.strides() == tensor.strides() ? tensor : at::empty_like(like).copy_(tensor);
}

AttentionResults Fused(FusedKernel kernel, const at::Tensor& query, const at::Tensor& key,
                       const at::Tensor& value, bool causal, std::optional<double> scale) {
  const at::Tensor q = Dense(query), k = Dense(key), v = Dense(value);
  at::Tensor output, logarithms;
  if (kernel == FusedKernel::kFlash) {
    const auto made = at::_scaled_dot_product_flash_attention(q, k, v, /*dropout_p=*/0.0, causal,
                                                              /*return_debug_mask=*/false, scale);
    std::tie(output, logarithms) = std::tie(std::get<0>(made), std::get<1>(made));
  } else {
    const auto made = at::_scaled_dot_product_efficient_attention(
        q, k, v, std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, causal, scale);
    std::tie(output, logarithms) = std::tie(std::get<0>(made), std::get<1>(made));
  }
  return {LyingAs(query, output), HeadsBehindRows(logarithms)};
}

AttentionBackwardResults FusedBackward(FusedKernel kernel, const at::Tensor& gradient,
                                       const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value, const at::Tensor& output,
                                       const at::Tensor& logarithms, bool causal,
                                       std::optional<double> scale) {
  const SameBitsOnly guard;
  const at::Tensor q = Dense(query), k = Dense(key), v = Dense(value), dy = Dense(gradient);
  const at::Tensor made = HeadsBehindRows(output), sums = logarithms.contiguous();
  // Of a dropout, which there is not.
  const at::Tensor seed = at::empty({2}, query.options().dtype(at::kLong));
  const at::Tensor offset = at::empty({}, query.options().dtype(at::kLong));
  at::Tensor of_query, of_key, of_value;
  if (kernel == FusedKernel::kFlash) {
    std::tie(of_query, of_key, of_value) = at::_scaled_dot_product_flash_attention_backward(
        dy, q, k, v, made, sums, /*cum_seq_q=*/at::Tensor(), /*cum_seq_k=*/at::Tensor(),
        query.size(2), key.size(2), /*dropout_p=*/0.0, causal, seed, offset, scale);
  } else {
    at::Tensor of_mask;
    std::tie(of_query, of_key, of_value, of_mask) =
        at::_scaled_dot_product_efficient_attention_backward(
            dy, q, k, v, /*attn_bias=*/at::Tensor(), made, sums, seed, offset,
            /*dropout_p=*/0.0, std::array<bool, 4>{true, true, true, false}, causal, scale);
  }
  // One after the other: of a copy the original goes before the next is made.
  for (at::Tensor* each : {&of_query, &of_key, &of_value}) *each = HeadsBehindRows(*each);
  return {of_query, of_key, of_value};
}

}  // namespace

void UseFusedAttention(int multiprocessors) { multiprocessors_of_gpu = multiprocessors; }

FusedKernel KernelFor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      bool causal, const std::optional<at::Tensor>& mask, int multiprocessors) {
  const bool whole = query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() &&
                     query.numel() > 0 && key.numel() > 0 && query.size(0) == key.size(0) &&
                     query.size(3) == key.size(3) && query.size(1) % key.size(1) == 0 &&
                     query.scalar_type() == key.scalar_type() &&
                     query.scalar_type() == value.scalar_type();
  // They have a block for each in the second and third direction of a grid.
  constexpr int64_t kMostBlocks = 65535;
  const bool in_grid = whole && query.size(0) <= kMostBlocks && query.size(1) <= kMostBlocks;
  // Plans count on no more of them (model::GpuAttentionSums).
  const bool counted = multiprocessors > 0 && multiprocessors <= model::kMostMultiprocessors;
  if (!in_grid || !counted || mask.has_value()) return FusedKernel::kNone;
  const int64_t rows = query.size(2), width = query.size(3);
  if (rows < model::kLeastFusedRows) return FusedKernel::kNone;
  switch (query.scalar_type()) {
    case at::kBFloat16:
    case at::kHalf:
      // Its causal mask ends with the last row and column, ours begins with the first. Some GPUs
      // have too little memory of a multiprocessor's for backwards of widths from 200 to 224.
      return width % 8 == 0 && width <= 256 && (width <= 192 || width > 224) &&
                     (!causal || rows == key.size(2))
                 ? FusedKernel::kFlash
                 : FusedKernel::kNone;
    case at::kFloat:
      // It fills the logarithms up to 32 rows, and knows no grouped queries.
      return width % 4 == 0 && width <= 256 && rows % 32 == 0 && query.size(1) == key.size(1)
                 ? FusedKernel::kMemoryEfficient
                 : FusedKernel::kNone;
    default:
      return FusedKernel::kNone;
  }
}

AttentionResults DeviceAttention(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, bool causal,
                                 const std::optional<at::Tensor>& mask,
                                 std::optional<double> scale) {
  const FusedKernel kernel = ChosenFor(query, key, value, causal, mask);
  if (kernel == FusedKernel::kNone) {
    return AttentionInPieces(query, key, value, causal, mask, scale);
  }
  return Fused(kernel, query, key, value, causal, scale);
}

AttentionBackwardResults DeviceAttentionBackward(const at::Tensor& gradient,
                                                 const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, const at::Tensor& output,
                                                 const at::Tensor& logarithms, bool causal,
                                                 const std::optional<at::Tensor>& mask,
                                                 std::optional<double> scale) {
  const FusedKernel kernel = ChosenFor(query, key, value, causal, mask);
  if (kernel == FusedKernel::kNone) {
    return AttentionInPiecesBackward(gradient, query, key, value, output, logarithms, causal, mask,
                                     scale);
  }
  return FusedBackward(kernel, gradient, query, key, value, output, logarithms, causal, scale);
}

}  // namespace harmony::worker
