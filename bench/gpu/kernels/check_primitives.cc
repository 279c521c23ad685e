#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/gpu/kernels/checker.h"
#include "bench/gpu/kernels/right_results.h"
#include "worker/models/primitives.h"

namespace harmony::bench {
namespace {

using worker::Primitives;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

std::string NameOf(const char* what, at::ScalarType type, int64_t width) {
  return absl::StrCat(what, ".", TypeName(type), ".", width);
}

// Widths that are a multiple of what is read at once, and not.
std::vector<int64_t> Widths(const Checker& check) {
  return check.large() ? std::vector<int64_t>{4096, 8192, 1021} : std::vector<int64_t>{64, 37};
}

void CheckNorm(Checker& check, const Primitives& with, at::ScalarType type, int64_t width,
               bool centred) {
  constexpr double kEpsilon = 1e-5;
  const int64_t rows = check.large() ? 3001 : 301;
  const at::Tensor x = check.There(check.Random({rows, width}, at::kFloat) + 0.5).to(type);
  const at::Tensor gradient = check.Random({rows, width}, type);
  const auto sums = [&] { return check.There(at::zeros({width}, at::kFloat)); };
  worker::NormParam param{{check.Random({width}, type), sums()}, {}, kEpsilon};
  at::Tensor bias = at::zeros({width}, at::kDouble);
  if (centred) {
    param.bias = {check.Random({width}, type), sums()};
    bias = Checker::Wide(param.bias.weight);
  }
  worker::NormSaved saved;
  at::Tensor y;
  with.Norm(y, x, param, saved);
  const at::Tensor of_x = with.NormBackward(gradient.clone(), x, param, saved);
  const NormRight right = RightNorm(Checker::Wide(x), Checker::Wide(gradient),
                                    Checker::Wide(param.weight.weight), bias, kEpsilon, centred);
  const std::string name = NameOf(centred ? "norm.layer" : "norm.rms", type, width);
  check.Compare(name + ".output", y, right.output, BarOf(type, kOnce));
  check.Compare(name + ".deviation", saved.rstd, right.deviation, kSums);
  check.Compare(name + ".of_input", of_x, right.of_input, BarOf(type, kOnce));
  check.Compare(name + ".of_weight", param.weight.gradient, right.of_weight.sum(0), kSums);
  if (!centred) return;
  check.Compare(name + ".mean", saved.mean, right.mean, kSums);
  check.Compare(name + ".of_bias", param.bias.gradient, right.of_bias.sum(0), kSums);
}

void CheckRotation(Checker& check, const Primitives& with, at::ScalarType type, int64_t head_dim) {
  const int64_t samples = 2, tokens = check.large() ? 2048 : 33, heads = 3, half = head_dim / 2;
  worker::RopeTables tables{tokens, head_dim, {}, {}, {}};
  for (int64_t i = 0; i < half; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(half);
    tables.frequencies.push_back(static_cast<float>(std::pow(10000.0, -share)));
  }
  const at::Tensor x = check.Random({samples * tokens, heads * head_dim}, type);
  const at::Tensor frequencies = at::tensor(tables.frequencies);
  // An angle is rounded to fp32 before its sine is taken, as transformers does it.
  const at::Tensor angles = at::arange(tokens, at::kFloat).unsqueeze(1) * frequencies;
  const at::Tensor cosines = angles.to(at::kDouble).cos().view({1, tokens, 1, half});
  const at::Tensor sines = angles.to(at::kDouble).sin().view({1, tokens, 1, half});
  const at::Tensor pairs = Checker::Wide(x).view({samples, tokens, heads, 2, half});
  const at::Tensor first = pairs.select(3, 0), second = pairs.select(3, 1);
  for (const bool inverse : {false, true}) {
    const at::Tensor sine = inverse ? -sines : sines;
    const at::Tensor right =
        at::stack({first * cosines - second * sine, second * cosines + first * sine}, 3);
    at::Tensor turned = x.clone();
    with.Rotate(turned, tables, {samples, tokens, samples}, inverse);
    check.Compare(NameOf(inverse ? "rotate.inverse" : "rotate", type, head_dim), turned, right,
                  BarOf(type, kOnce));
  }
}

// A function and its derivative.
struct Slope {
  at::Tensor value, derivative;
};
Slope RightSlope(model::Activation activation, const at::Tensor& x) {
  switch (activation) {
    case model::Activation::kSilu: {
      const at::Tensor share = x.sigmoid();
      return {x * share, share * (1 + x * (1 - share))};
    }
    case model::Activation::kRelu:
      return {x.clamp_min(0), x.gt(0).to(at::kDouble)};
    case model::Activation::kGelu:
      return {
          x * 0.5 * (1 + (x * std::sqrt(0.5)).erf()),
          0.5 * (1 + (x * std::sqrt(0.5)).erf()) + x * (-0.5 * x * x).exp() / std::sqrt(2 * M_PI)};
    case model::Activation::kGeluTanh: {
      const double root = std::sqrt(2 / M_PI), cubic = 0.044715;
      const at::Tensor tangent = (root * (x + cubic * x * x * x)).tanh();
      return {0.5 * x * (1 + tangent), 0.5 * (1 + tangent) + 0.5 * x * (1 - tangent * tangent) *
                                                                 root * (1 + 3 * cubic * x * x)};
    }
  }
  return {};
}

void CheckGated(Checker& check, const Primitives& with, at::ScalarType type, int64_t width) {
  const int64_t rows = check.large() ? 4097 : 65;
  const struct {
    const char* name;
    model::Activation activation;
  } kinds[] = {{"silu", model::Activation::kSilu},
               {"relu", model::Activation::kRelu},
               {"gelu", model::Activation::kGelu},
               {"gelu_tanh", model::Activation::kGeluTanh}};
  for (const auto& [kind, activation] : kinds) {
    const at::Tensor gate = check.Random({rows, width}, type, 2);
    const at::Tensor up = check.Random({rows, width}, type);
    const at::Tensor gradient = check.Random({rows, width}, type);
    at::Tensor made, in_place = gate.clone();
    with.Gated(made, gate, up, activation, rows);
    with.Gated(in_place, in_place, up, activation, rows);
    at::Tensor of_gate = gradient.clone(), of_up = at::empty_like(up);
    with.GatedBackward(of_gate, of_up, gate, up, activation);
    const Slope right = RightSlope(activation, Checker::Wide(gate));
    const std::string name = NameOf(absl::StrCat("gated.", kind).c_str(), type, width);
    const double bar = BarOf(type, kSomeTimes);
    check.Compare(name, made, right.value * Checker::Wide(up), bar);
    check.Same(name + ".in_place", in_place, made.cpu());
    check.Compare(name + ".of_gate", of_gate,
                  Checker::Wide(gradient) * Checker::Wide(up) * right.derivative, bar);
    check.Compare(name + ".of_up", of_up, Checker::Wide(gradient) * right.value, bar);
  }
}

// Labels of which some count nothing, and a head whose last chunk is shorter.
void CheckLinearLoss(Checker& check, const Primitives& with, at::ScalarType type, int64_t classes) {
  constexpr int64_t kWidth = 64, kIgnored = -1;
  const int64_t rows = check.large() ? 1500 : 150;
  worker::LinearLoss loss;
  loss.x = check.Random({rows, kWidth}, type);
  loss.weight = check.Random({classes, kWidth}, type, 0.2);
  const at::Tensor labels = at::arange(rows, at::kInt) * 7 % static_cast<int>(classes);
  labels.slice(0, 1, rows, 3).fill_(kIgnored);
  loss.labels = check.There(labels);
  loss.chunk_rows = rows / 2 - 5;
  loss.scale = 0.25;
  loss.x_gradient = at::empty_like(loss.x);
  loss.weight_gradient = check.There(at::zeros({classes, kWidth}, at::kFloat));
  const double sum = with.RunLinearLoss(loss);
  const LossRight right = RightLoss(Checker::Wide(loss.x), Checker::Wide(loss.weight), std::nullopt,
                                    labels.to(at::kLong), kIgnored, loss.scale);
  const std::string name = NameOf("linear_loss", type, classes);
  const double bar = BarOf(type, kSomeTimes);
  check.Compare(name, at::full({}, sum, at::kDouble), right.loss, bar);
  check.Compare(name + ".of_x", loss.x_gradient, right.of_x, bar);
  check.Compare(name + ".of_weight", loss.weight_gradient, right.of_weight, bar);
}

void CheckSums(Checker& check, const Primitives& with, at::ScalarType type, int64_t width) {
  const int64_t samples = 3, tokens = check.large() ? 1365 : 67, words = 29;
  const at::Tensor dy = check.Random({samples * tokens, width}, type);
  const at::Tensor wide = Checker::Wide(dy);
  const at::Tensor ids = at::arange(samples * tokens, at::kInt) * 31 % static_cast<int>(words);
  const auto begun = [&](int64_t rows) { return check.There(at::ones({rows, width}, at::kFloat)); };
  at::Tensor sums = begun(1).squeeze(0), rows = begun(words), positions = begun(tokens + 2);
  with.AddSumOfRows(sums, dy);
  check.Compare(NameOf("sum_of_rows", type, width), sums, 1 + wide.sum(0), kSums);
  constexpr int kSkip = 5;
  with.ScatterAddRows(rows, check.There(ids), dy, kSkip);
  const at::Tensor kept = wide * ids.ne(kSkip).unsqueeze(1);
  check.Compare(NameOf("scatter_add", type, width), rows,
                1 + at::zeros({words, width}, at::kDouble).index_add(0, ids, kept), kSums);
  with.SumPositions(positions, dy, {samples, tokens, samples});
  at::Tensor right = at::ones({tokens + 2, width}, at::kDouble);
  right.narrow(0, 0, tokens) += wide.view({samples, tokens, width}).sum(0);
  check.Compare(NameOf("sum_positions", type, width), positions, right, kSums);
}

}  // namespace

void CheckPrimitives(Checker& check, const worker::ComputeDevice& device) {
  const auto with = worker::MakePortablePrimitives(device.target(), device.row_kernels());
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : Widths(check)) {
      for (const bool centred : {true, false}) CheckNorm(check, *with, type, width, centred);
      CheckGated(check, *with, type, width);
      CheckSums(check, *with, type, width);
      CheckLinearLoss(check, *with, type, width);
    }
    for (const int64_t head_dim : {128, 10}) CheckRotation(check, *with, type, head_dim);
  }
}

}  // namespace harmony::bench
