#include "bench/gpu/kernels/right_results.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>

namespace harmony::bench {

AttentionRight RightAttention(const AttentionCase& from) {
  const double scale = 1 / std::sqrt(static_cast<double>(from.query.size(3)));
  const int64_t shared = from.query.size(1) / from.key.size(1);
  const at::Tensor key = from.key.repeat_interleave(shared, 1);
  const at::Tensor value = from.value.repeat_interleave(shared, 1);
  at::Tensor scores = from.query.matmul(key.transpose(2, 3)) * scale;
  if (from.mask.has_value()) scores = scores + *from.mask;
  if (from.causal) {
    const at::Tensor later =
        at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor weights = scores.softmax(3);
  const at::Tensor of_weights = from.gradient.matmul(value.transpose(2, 3));
  const at::Tensor of_scores =
      weights * (of_weights - (of_weights * weights).sum(3, /*keepdim=*/true)) * scale;
  // Of keys and values that several heads share, the sum.
  const auto summed = [&](const at::Tensor& of_each) {
    const auto sizes = from.key.sizes();
    return of_each.reshape({sizes[0], sizes[1], shared, sizes[2], sizes[3]}).sum(2);
  };
  return {weights.matmul(value), scores.logsumexp(3), of_scores.matmul(key),
          summed(of_scores.transpose(2, 3).matmul(from.query)),
          summed(weights.transpose(2, 3).matmul(from.gradient))};
}

NormRight RightNorm(const at::Tensor& input, const at::Tensor& gradient, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon, bool centred) {
  const auto mean_of = [&](const at::Tensor& t) { return t.mean(1, /*keepdim=*/true); };
  const at::Tensor mean = centred ? mean_of(input) : at::zeros({1, 1}, input.options());
  const at::Tensor apart = input - mean;
  const at::Tensor deviation = (mean_of(apart.square()) + epsilon).rsqrt();
  const at::Tensor normal = apart * deviation, scaled = gradient * weight;
  at::Tensor of_input = scaled - normal * mean_of(scaled * normal);
  if (centred) of_input -= mean_of(scaled);
  of_input *= deviation;
  return {normal * weight + bias, mean.squeeze(1), deviation.squeeze(1), of_input,
          gradient * normal,      gradient};
}

LossRight RightLoss(const at::Tensor& x, const at::Tensor& weight, const Optional& bias,
                    const at::Tensor& labels, int64_t ignored, double scale) {
  at::Tensor logits = x.matmul(weight.t());
  if (bias.has_value()) logits = logits + *bias;
  const at::Tensor counted = labels.ne(ignored).unsqueeze(1).to(at::kDouble);
  const at::Tensor picked = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor logarithms = logits.log_softmax(1);
  const at::Tensor ones = at::ones({labels.size(0), 1}, x.options());
  const at::Tensor of_logits = logarithms.exp().scatter_add(1, picked, -ones) * counted * scale;
  return {-(logarithms.gather(1, picked) * counted).sum(), of_logits.matmul(weight),
          of_logits.t().matmul(x),
          bias.has_value() ? of_logits.sum(0) : at::zeros({0}, x.options())};
}

}  // namespace harmony::bench
