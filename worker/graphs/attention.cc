#include "worker/graphs/attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <optional>

#include "worker/models/fused_attention.h"

namespace harmony::worker {
namespace {

AttentionResults AttentionOnCpu(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, bool causal,
                                const std::optional<at::Tensor>& mask,
                                std::optional<double> scale) {
  return at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0.0,
                                                         causal, mask, scale);
}

AttentionBackwardResults AttentionBackwardOnCpu(const at::Tensor& gradient, const at::Tensor& query,
                                                const at::Tensor& key, const at::Tensor& value,
                                                const at::Tensor& output,
                                                const at::Tensor& logarithms, bool causal,
                                                const std::optional<at::Tensor>& mask,
                                                std::optional<double> scale) {
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, logarithms, /*dropout_p=*/0.0, causal, mask, scale);
}

}  // namespace

void DefineAttention(torch::Library& library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, bool causal, Tensor? mask, float? scale) "
      "-> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, "
      "Tensor logarithms, bool causal, Tensor? mask, float? scale) -> (Tensor, Tensor, Tensor)");
  const auto add = [&](const char* name, auto on_cpu, auto on_others) {
    library.impl(name, torch::dispatch(c10::DispatchKey::CPU, on_cpu));
    library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, on_others));
  };
  add("attention", TORCH_FN(AttentionOnCpu), TORCH_FN(DeviceAttention));
  add("attention_backward", TORCH_FN(AttentionBackwardOnCpu), TORCH_FN(DeviceAttentionBackward));
}

}  // namespace harmony::worker
