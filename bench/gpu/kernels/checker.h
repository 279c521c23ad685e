#pragma once

// What the checks of kernels have in common. Numbers are random, but the same in each run.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cstdio>
#include <string>

#include "worker/device/compute_device.h"

namespace harmony::bench {

// Results are rounded once, or a few times on the way; sums are in fp32. Half a unit in the last
// place is 2^-9 of a number in bf16.
inline constexpr double kOnce = 1.0 / 256, kSomeTimes = 1.0 / 64;
inline constexpr double kSums = 2e-5;
// What a product's number is compared with is at least this share of the largest: of what nearly
// cancels, rounding in fp32 is seen.
inline constexpr double kLeastOfProducts = 1.0 / 64;

inline double BarOf(at::ScalarType type, double narrow) {
  return type == at::kFloat ? kSums : narrow;
}

class Checker {
 public:
  Checker(at::Device device, bool large) : device_(device), large_(large) {}

  bool all_met() const { return all_met_; }
  bool large() const { return large_; }
  bool on_cpu() const { return device_.is_cpu(); }

  // Normal numbers, the same in each run, of that type there.
  at::Tensor Random(at::IntArrayRef shape, at::ScalarType type, double factor = 1) {
    return There((at::randn(shape, generator_, at::kDouble) * factor).to(type));
  }
  at::Tensor There(const at::Tensor& tensor) const { return tensor.to(device_); }

  void Compare(const std::string& name, const at::Tensor& found, const at::Tensor& right,
               double bar, double least = 1) {
    const at::Tensor got = Wide(found).reshape(right.sizes());
    const double most = right.numel() == 0 ? 0 : right.abs().max().item<double>();
    const at::Tensor compared_with = right.abs().clamp_min(most * least);
    double apart = 0;
    if (right.numel() > 0) apart = ((got - right).abs() / compared_with).max().item<double>();
    Report(name, apart, bar, apart <= bar);  // not a number is not met
  }
  void Same(const std::string& name, const at::Tensor& found, const at::Tensor& right) {
    const at::Tensor got = found.cpu();
    const double differ = got.ne(right).sum().item<double>();
    Report(name, differ, 0, differ == 0 && got.scalar_type() == right.scalar_type());
  }

  static at::Tensor Wide(const at::Tensor& tensor) { return tensor.cpu().to(at::kDouble); }

 private:
  void Report(const std::string& name, double apart, double bar, bool met) {
    std::printf("{\"name\": \"%s\", \"apart\": \"%.3g\", \"bar\": %.3g, \"met\": %s}\n",
                name.c_str(), apart, bar, met ? "true" : "false");
    std::fflush(stdout);
    all_met_ &= met;
  }

  const at::Device device_;
  const bool large_;
  at::Generator generator_ = at::detail::createCPUGenerator(1);
  bool all_met_ = true;
};

inline std::string TypeName(at::ScalarType type) { return type == at::kFloat ? "fp32" : "bf16"; }

// What the built-in families compute by on devices other than the CPU (worker/models/primitives.h).
void CheckPrimitives(Checker& check, const worker::ComputeDevice& device);

}  // namespace harmony::bench
