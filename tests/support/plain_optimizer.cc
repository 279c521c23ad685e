#include <cmath>

#include "common/base/status.h"
#include "tests/support/plain_trainer.h"

namespace harmony::testing {
namespace {

// PyTorch's AdamW, element by element (DESIGN section 10).
struct AdamW {
  double rate, beta1, beta2, epsilon, correction1, correction2;

  void operator()(float& w, float& m, float& v, float g, float weight_decay) const {
    w *= static_cast<float>(1 - rate * weight_decay);
    m = static_cast<float>(beta1) * m + static_cast<float>(1 - beta1) * g;
    v = static_cast<float>(beta2) * v + static_cast<float>(1 - beta2) * g * g;
    const float denominator =
        std::sqrt(v) / static_cast<float>(std::sqrt(correction2)) + static_cast<float>(epsilon);
    w -= static_cast<float>(rate / correction1) * (m / denominator);
  }
};

}  // namespace

absl::StatusOr<StepResult> PlainTrainer::Step(absl::Span<const int32_t> tokens,
                                              absl::Span<const int32_t> labels) {
  StepResult result;
  HARMONY_ASSIGN_OR_RETURN(result.loss, AccumulateGradients(tokens, labels));
  result.learning_rate = LearningRateAt(job_, step_);
  ++step_;
  double squares = 0;
  for (const ParamBlock& block : model_.blocks) {
    float* g = gradients_[block.uses.back()].data();
    if (block.uses.size() > 1) {
      const float* other = gradients_[block.uses.front()].data();
      for (int64_t i = 0; i < block.elements; ++i) g[i] += other[i];
    }
    for (int64_t i = 0; i < block.elements; ++i) squares += static_cast<double>(g[i]) * g[i];
  }
  result.grad_norm = std::sqrt(squares);
  const float clip =
      job_.max_grad_norm > 0
          ? static_cast<float>(std::min(1.0, job_.max_grad_norm / (result.grad_norm + 1e-6)))
          : 1.0f;
  const double rate = result.learning_rate;
  const AdamW adamw{rate,
                    job_.adam_beta1,
                    job_.adam_beta2,
                    job_.adam_epsilon,
                    1 - std::pow(job_.adam_beta1, static_cast<double>(step_)),
                    1 - std::pow(job_.adam_beta2, static_cast<double>(step_))};
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    const float* g = gradients_[model_.blocks[b].uses.back()].data();
    for (const TensorSpec& tensor : model_.blocks[b].tensors) {
      const float decay = tensor.weight_decay ? static_cast<float>(job_.weight_decay) : 0.0f;
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
        float& w = weights_[b].data()[i];
        if (job_.optim == OptimizerKind::kAdamW) {
          adamw(w, moments1_[b].data()[i], moments2_[b].data()[i], g[i] * clip, decay);
        } else {
          w -= static_cast<float>(rate) * (g[i] * clip + decay * w);
        }
      }
    }
  }
  return result;
}

}  // namespace harmony::testing
