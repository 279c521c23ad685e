#include "worker/models/rope.h"

// ATen/ATen.h brings the operators between tensors and numbers.
#include <ATen/ATen.h>

#include <numbers>

namespace harmony::worker {
namespace {

// transformers' _compute_llama3_parameters.
at::Tensor ScaleLlama3(const at::Tensor& frequencies, const model::RopeConfig& rope) {
  const double context = static_cast<double>(rope.original_max_position_embeddings);
  const double low_wavelength = context / rope.low_freq_factor;
  const double high_wavelength = context / rope.high_freq_factor;
  const at::Tensor wavelengths = frequencies.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor scaled =
      at::where(wavelengths > low_wavelength, frequencies / rope.factor, frequencies);
  const at::Tensor smooth = (wavelengths.reciprocal() * context - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * scaled / rope.factor + smooth * scaled;
  const at::Tensor medium =
      at::logical_and(wavelengths >= high_wavelength, wavelengths <= low_wavelength);
  return at::where(medium, smoothed, scaled);
}

at::Tensor InverseFrequencies(const model::RopeConfig& rope, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  at::Tensor frequencies = at::pow(at::Scalar(rope.theta), exponents).reciprocal();
  if (rope.scaling == model::RopeConfig::Scaling::kLinear) return frequencies / rope.factor;
  if (rope.scaling == model::RopeConfig::Scaling::kLlama3) return ScaleLlama3(frequencies, rope);
  return frequencies;
}

std::vector<float> ToVector(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.contiguous();
  return std::vector<float>(rows.const_data_ptr<float>(),
                            rows.const_data_ptr<float>() + rows.numel());
}

}  // namespace

RopeTables MakeRopeTables(const model::RopeConfig& rope, int64_t head_dim, int64_t tokens) {
  const at::Tensor positions = at::arange(0, tokens, at::kLong).to(at::kFloat);
  const at::Tensor frequencies = InverseFrequencies(rope, head_dim);
  const at::Tensor angles = positions.unsqueeze(1) * frequencies;
  return RopeTables{tokens, head_dim, ToVector(frequencies), ToVector(at::cos(angles)),
                    ToVector(at::sin(angles))};
}

}  // namespace harmony::worker
