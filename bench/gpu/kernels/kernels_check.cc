// kernels_check: whether the kernels that models are computed by are right, each by itself against
// float64, on a GPU or on the CPU.
//
//   kernels_check [--device cuda:0] [--large]
//
// A line of JSON for each result: the largest difference from float64, relative to the result's
// largest number, and the bar. Of products the difference is relative to each number, so that a sum
// in 16 bits would show. Exit code 1: a bar was missed; 2: nothing could be computed.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu/kernels/checker.h"
#include "bench/gpu/kernels/right_results.h"
#include "common/base/status.h"
#include "common/cuda/driver.h"
#include "common/cuda/region.h"
#include "common/ipc/fd_passing.h"
#include "common/plan/machine.h"
#include "worker/device/cuda_plugin.h"
#include "worker/device/sim_backend.h"
#include "worker/graphs/own_operators.h"

namespace harmony::bench {
namespace {

using c10::IValue;
using worker::ComputeDevice;

std::vector<at::Tensor> Call(const char* name, std::vector<IValue> arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxed(arguments);
  std::vector<at::Tensor> results;
  for (const IValue& result : arguments) results.push_back(result.toTensor());
  return results;
}

IValue Wanted() { return c10::List<bool>({true, true, true}); }
IValue OrNone(const Optional& tensor) { return tensor.has_value() ? IValue(*tensor) : IValue(); }

// ---- Products, and sums of rows ----

void CheckProducts(Checker& check) {
  const int64_t m = check.large() ? 512 : 64, k = check.large() ? 8192 : 512, n = m / 2;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = check.Random({m, k}, type), b = check.Random({k, n}, type);
    check.Compare(absl::StrCat("mm.", TypeName(type)), at::mm(a, b),
                  Checker::Wide(a).matmul(Checker::Wide(b)), BarOf(type, kOnce), kLeastOfProducts);
  }
  const at::Tensor a = check.Random({m, k}, at::kFloat), b = check.Random({k, n}, at::kFloat);
  const at::Tensor bias = check.Random({n}, at::kFloat);
  check.Compare("product.fp32", Call("harmony::product", {bias, a, b})[0],
                Checker::Wide(a).matmul(Checker::Wide(b)) + Checker::Wide(bias), kSums,
                kLeastOfProducts);
}

void CheckEmbedding(Checker& check) {
  const int64_t tokens = check.large() ? 32768 : 512, words = 97, width = 64;
  const at::Tensor ids = check.There(at::arange(tokens, at::kLong) * 31 % words);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor gradient = check.Random({tokens, width}, type);
    const at::Tensor right =
        at::zeros({words, width}, at::kDouble).index_add(0, ids.cpu(), Checker::Wide(gradient));
    check.Compare(absl::StrCat("embedding_backward.", TypeName(type)),
                  at::embedding_dense_backward(gradient, ids, words, -1, false), right,
                  BarOf(type, kSomeTimes));
  }
}

// Heads beside each other for each token, as projections leave them.
void CheckRotary(Checker& check, at::ScalarType type, int64_t width) {
  const int64_t samples = 3, heads = 8, tokens = check.large() ? 2048 : 17, half = width / 2;
  const at::Tensor x = check.Random({samples, tokens, heads, width}, type).transpose(1, 2);
  const at::Tensor cosines = check.Random({1, 1, tokens, width}, type);
  const at::Tensor sines = check.Random({tokens, width}, type);
  const at::Tensor wide = Checker::Wide(x), sine = Checker::Wide(sines);
  const auto exchanged = [&](const at::Tensor& from, double of_first, double of_second) {
    return at::cat({from.slice(-1, half) * of_second, from.slice(-1, 0, half) * of_first}, -1);
  };
  const at::Tensor direct = wide * Checker::Wide(cosines);
  const std::string name = absl::StrCat("rotary.", TypeName(type), ".", width);
  const c10::List<int64_t> order({0, 2, 1, 3});
  const double bar = BarOf(type, kSomeTimes);
  check.Compare(name, Call("harmony::rotary", {x, cosines, sines, order})[0],
                direct + exchanged(wide, 1, -1) * sine, bar);
  check.Compare(name + ".backward", Call("harmony::rotary_backward", {x, cosines, sines, order})[0],
                direct + exchanged(wide * sine, -1, 1), bar);
}

// ---- Norms ----

struct NormTypes {
  const char* name;
  at::ScalarType input, parameters;
};
constexpr NormTypes kNormTypes[] = {{"bf16", at::kBFloat16, at::kBFloat16},
                                    {"mixed", at::kBFloat16, at::kFloat}};

// What a norm gave, forward and backward, beside the right one of the same form. `of_weights`: the
// bar of the gradients of its parameters.
void CompareNorm(Checker& check, const std::string& name, double of_weights,
                 const std::vector<at::Tensor>& forward, const std::vector<at::Tensor>& backward,
                 const NormRight& right) {
  check.Compare(name + ".output", forward[0], right.output, kSomeTimes);
  check.Compare(name + ".mean", forward[1], right.mean, kSomeTimes);
  check.Compare(name + ".rstd", forward[2], right.deviation, kSomeTimes);
  check.Compare(name + ".of_input", backward[0], right.of_input, kSomeTimes);
  check.Compare(name + ".of_weight", backward[1], right.of_weight, of_weights);
  check.Compare(name + ".of_bias", backward[2], right.of_bias, of_weights);
}

void CheckLayerNorm(Checker& check, const NormTypes& types) {
  const int64_t rows = check.large() ? 8192 : 48, width = check.large() ? 4096 : 96;
  const at::Tensor x = check.Random({rows, width}, types.input);
  const at::Tensor gradient = check.Random({rows, width}, types.input);
  const at::Tensor weight = check.Random({width}, types.parameters);
  const at::Tensor bias = check.Random({width}, types.parameters);
  const IValue shape = c10::List<int64_t>({width});
  const auto forward = Call("harmony::layer_norm", {x, shape, weight, bias, 1e-5});
  const auto backward = Call("harmony::layer_norm_backward",
                             {gradient, x, shape, forward[1], forward[2], weight, bias, Wanted()});
  NormRight right = RightNorm(Checker::Wide(x), Checker::Wide(gradient), Checker::Wide(weight),
                              Checker::Wide(bias), 1e-5);
  right.of_weight = right.of_weight.sum(0);
  right.of_bias = right.of_bias.sum(0);
  // The CPU's kernel, eager PyTorch's, adds these up in 16 bits where the input has them.
  const double of_weights = check.on_cpu() ? kSomeTimes : BarOf(types.parameters, kSomeTimes);
  CompareNorm(check, absl::StrCat("layer_norm.", types.name), of_weights, forward, backward, right);
}

void CheckRmsNorm(Checker& check, at::ScalarType type) {
  const int64_t rows = check.large() ? 8192 : 48, width = check.large() ? 4096 : 96;
  const at::Tensor x = check.Random({rows, width}, type), other = check.Random({rows, width}, type);
  const at::Tensor gradient = check.Random({rows, width}, type);
  const at::Tensor weight = check.Random({width}, type);
  const auto forward = Call("harmony::rms_norm", {x, weight, 1e-5});
  const auto backward =
      Call("harmony::rms_norm_backward", {gradient, x, weight, forward[1], other});
  const NormRight right =
      RightNorm(Checker::Wide(x), Checker::Wide(gradient), Checker::Wide(weight),
                at::zeros({1}, at::kDouble), 1e-5, /*centred=*/false);
  const std::string name = absl::StrCat("rms_norm.", TypeName(type));
  const double bar = BarOf(type, kSomeTimes);
  check.Compare(name + ".output", forward[0], right.output, bar);
  check.Compare(name + ".deviation", forward[1], right.deviation, kSums);
  check.Compare(name + ".of_input", backward[0], right.of_input + Checker::Wide(other), bar);
  check.Compare(name + ".of_weight", backward[1], right.of_weight.sum(0), bar);
}

void CheckGroupNorm(Checker& check) {
  const NormTypes types = kNormTypes[1];
  const int64_t samples = check.large() ? 16 : 3, channels = 32, size = check.large() ? 4096 : 20;
  const int64_t groups = 8;
  const at::Tensor x = check.Random({samples, channels, size}, types.input);
  const at::Tensor gradient = check.Random({samples, channels, size}, types.input);
  const at::Tensor weight = check.Random({channels}, types.parameters);
  const at::Tensor bias = check.Random({channels}, types.parameters);
  const auto forward =
      Call("harmony::group_norm", {x, weight, bias, samples, channels, size, groups, 1e-5});
  const auto backward = Call(
      "harmony::group_norm_backward",
      {gradient, x, forward[1], forward[2], weight, samples, channels, size, groups, Wanted()});
  const auto in_rows = [&](const at::Tensor& t) {
    return t.expand({samples, channels, size}).reshape({samples * groups, -1});
  };
  const auto by_channel = [](const at::Tensor& t) { return Checker::Wide(t).reshape({1, -1, 1}); };
  NormRight right = RightNorm(in_rows(Checker::Wide(x)), in_rows(Checker::Wide(gradient)),
                              in_rows(by_channel(weight)), in_rows(by_channel(bias)), 1e-5);
  for (at::Tensor* of : {&right.of_weight, &right.of_bias}) {
    *of = of->reshape({samples, channels, size}).sum(2).sum(0);
  }
  CompareNorm(check, "group_norm.mixed", kSums, forward, backward, right);
}

void CheckBatchNorm(Checker& check) {
  const NormTypes types = kNormTypes[0];
  const int64_t samples = check.large() ? 16 : 3, channels = 32, size = check.large() ? 4096 : 20;
  const at::Tensor x = check.Random({samples, channels, size}, types.input);
  const at::Tensor gradient = check.Random({samples, channels, size}, types.input);
  const at::Tensor weight = check.Random({channels}, types.parameters);
  const at::Tensor bias = check.Random({channels}, types.parameters);
  const auto forward = Call("harmony::batch_norm", {x, weight, bias, true, 0.1, 1e-5});
  const auto backward =
      Call("harmony::batch_norm_backward",
           {gradient, x, weight, IValue(), IValue(), forward[1], forward[2], true, 1e-5, Wanted()});
  const auto in_rows = [&](const at::Tensor& t) {
    return Checker::Wide(t).transpose(0, 1).reshape({channels, -1});
  };
  const auto by_channel = [](const at::Tensor& t) { return Checker::Wide(t).reshape({-1, 1}); };
  NormRight right =
      RightNorm(in_rows(x), in_rows(gradient), by_channel(weight), by_channel(bias), 1e-5);
  for (at::Tensor* of : {&right.output, &right.of_input}) {
    *of = of->reshape({channels, samples, size}).transpose(0, 1).contiguous();
  }
  right.of_weight = right.of_weight.sum(1);
  right.of_bias = right.of_bias.sum(1);
  CompareNorm(check, "batch_norm.bf16", kSomeTimes, forward, backward, right);
}

// ---- Attention ----

struct AttentionShape {
  const char* name;
  int64_t tokens, heads, shared_heads, width;
  bool causal, masked;
};

void CheckAttention(Checker& check, const AttentionShape& shape, at::ScalarType type) {
  const std::vector<int64_t> of_queries = {2, shape.heads, shape.tokens, shape.width};
  const std::vector<int64_t> of_keys = {2, shape.shared_heads, shape.tokens, shape.width};
  AttentionCase c{check.Random(of_queries, type),
                  check.Random(of_keys, type),
                  check.Random(of_keys, type),
                  check.Random(of_queries, type),
                  shape.causal,
                  std::nullopt};
  if (shape.masked) c.mask = check.Random({2, 1, shape.tokens, shape.tokens}, type);
  const auto forward =
      Call("harmony::attention", {c.query, c.key, c.value, c.causal, OrNone(c.mask), IValue()});
  const auto backward =
      Call("harmony::attention_backward", {c.gradient, c.query, c.key, c.value, forward[0],
                                           forward[1], c.causal, OrNone(c.mask), IValue()});
  for (at::Tensor* tensor : {&c.query, &c.key, &c.value, &c.gradient}) {
    *tensor = Checker::Wide(*tensor);
  }
  if (c.mask.has_value()) c.mask = Checker::Wide(*c.mask);
  const AttentionRight right = RightAttention(c);
  const std::string name = absl::StrCat("attention.", shape.name, ".", TypeName(type));
  const double bar = BarOf(type, kSomeTimes);
  check.Compare(name + ".output", forward[0], right.output, bar);
  check.Compare(name + ".logarithms", forward[1], right.logarithms, bar);
  check.Compare(name + ".of_query", backward[0], right.of_query, bar);
  check.Compare(name + ".of_key", backward[1], right.of_key, bar);
  check.Compare(name + ".of_value", backward[2], right.of_value, bar);
}

void CheckAttentions(Checker& check) {
  const int64_t many = check.large() ? 2048 : 160;
  const AttentionShape shapes[] = {{"causal", many, 4, 4, 64, true, false},
                                   {"whole", many, 4, 4, 64, false, false},
                                   {"grouped", many, 4, 2, 128, true, false},
                                   {"masked", many, 4, 4, 64, false, true},
                                   {"short", 24, 4, 4, 16, true, false}};
  for (const AttentionShape& shape : shapes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      CheckAttention(check, shape, type);
    }
  }
}

// ---- The loss, and dropout ----

void CheckLoss(Checker& check) {
  constexpr int64_t kIgnored = -100;
  constexpr double kScale = 0.25;
  const int64_t rows = check.large() ? 4096 : 200, width = 64;
  const int64_t classes = check.large() ? 32000 : 1000;
  const at::Tensor x = check.Random({rows, width}, at::kFloat);
  const at::Tensor weight = check.Random({classes, width}, at::kFloat, 0.2);
  at::Tensor labels = at::arange(rows, at::kLong) * 7 % classes;
  labels.slice(0, 1, rows, 3).fill_(kIgnored);
  for (const bool has_bias : {false, true}) {
    Optional bias, wide_bias;
    if (has_bias) bias = check.Random({classes}, at::kFloat);
    if (has_bias) wide_bias = Checker::Wide(*bias);
    const auto found = Call("harmony::linear_cross_entropy",
                            {x, weight, OrNone(bias), check.There(labels), kIgnored,
                             check.There(at::full({}, kScale, at::kFloat))});
    const LossRight right =
        RightLoss(Checker::Wide(x), Checker::Wide(weight), wide_bias, labels, kIgnored, kScale);
    const std::string name = absl::StrCat("linear_cross_entropy.", has_bias ? "biased" : "plain");
    check.Compare(name + ".loss", found[0], right.loss, kSums);
    check.Compare(name + ".of_x", found[1], right.of_x, kSums);
    check.Compare(name + ".of_weight", found[2], right.of_weight, kSums);
    check.Compare(name + ".of_bias", found[3], right.of_bias, kSums);
  }
}

// The same elements on all devices.
void CheckDropout(Checker& check) {
  const at::Tensor keys = at::tensor({int64_t{0x0123456789ABCDEF}, int64_t{-3}, int64_t{0}});
  const IValue shape = c10::List<int64_t>({3, 400, 501});
  const auto draw = [&](const at::Tensor& by) {
    return Call("harmony::dropout_mask", {by, 7, 2, shape, 0, 0.3})[0];
  };
  check.Same("dropout_mask", draw(check.There(keys)), draw(keys));
}

// ---- What a device does without layers ----

worker::DeviceTensor Described(const at::Tensor& tensor, DType type) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return {worker::DeviceAddress(address), type, {tensor.numel()}};
}

void CheckDevice(Checker& check, ComputeDevice& device) {
  const int64_t count = check.large() ? 10'000'019 : 100'003;  // several pieces of a conversion
  const at::Tensor a = check.Random({count}, at::kFloat), b = check.Random({count}, at::kFloat);
  const at::Tensor host_a = a.cpu(), host_b = b.cpu();
  const at::Tensor narrow_sum =
      host_a.to(at::kBFloat16).to(at::kFloat) + host_b.to(at::kBFloat16).to(at::kFloat);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const at::Tensor sum = b.clone();
    device.Add(Described(a, DType::kF32), Described(sum, DType::kF32), type);
    const bool wide = type == DType::kF32;
    check.Same(wide ? "add.fp32" : "add.bf16", sum, wide ? host_a + host_b : narrow_sum);
  }
  const at::Tensor converted = a.clone();
  device.Convert(Described(converted, DType::kF32), Described(converted, DType::kBF16));
  check.Same("convert", converted.view(at::kBFloat16).slice(0, 0, count), host_a.to(at::kBFloat16));
  int tag = 0;
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1.0}) {
    for (const auto& [type, name] :
         {std::pair(DType::kF32, at::kFloat), std::pair(DType::kBF16, at::kBFloat16),
          std::pair(DType::kF16, at::kHalf), std::pair(DType::kF64, at::kDouble)}) {
      at::Tensor looked_at = a.to(name);
      looked_at[count - 1].fill_(bad);
      device.CheckFinite(Described(looked_at, type), ++tag);
      const absl::StatusOr<int> found = device.Synchronize();
      const int64_t expected = bad == 1.0 ? -1 : tag;
      check.Same(absl::StrCat("check_finite.", toString(name), ".", bad),
                 at::full({}, found.ok() ? *found : -2, at::kLong),
                 at::full({}, expected, at::kLong));
    }
  }
}

// ---- The device ----

absl::StatusOr<std::unique_ptr<worker::DeviceBackend>> Open(const plan::DeviceSpec& device) {
  if (device.kind == plan::DeviceKind::kSim) {
    HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd fd, ipc::CreateDeviceRegion(0, device.memory));
    HARMONY_ASSIGN_OR_RETURN(ipc::MappedRegion region, ipc::MappedRegion::Map(fd.get()));
    return worker::MakeSimBackend(std::move(region));
  }
  HARMONY_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::LoadDriver());
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd fd,
                           cuda::CreateRegion(*driver, device.cuda_ordinal, device.memory));
  return worker::OpenCudaBackend(device, fd.get());
}

absl::StatusOr<bool> Run(const std::string& spec, bool large) {
  HARMONY_ASSIGN_OR_RETURN(const std::vector<plan::DeviceSpec> devices, plan::ParseDevices(spec));
  HARMONY_ASSIGN_OR_RETURN(const auto backend, Open(devices.front()));
  HARMONY_ASSIGN_OR_RETURN(const auto device,
                           backend->Open(Bytes(), devices.front().memory, /*compute_threads=*/2));
  device->PrepareThread();
  worker::RegisterOwnOperators();
  const worker::LayerTarget target = device->target();
  const bool on_cpu = target.kind == worker::LayerTarget::Kind::kCpu;
  Checker check(on_cpu ? at::Device(at::kCPU)
                       : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(target.index)),
                large);
  CheckProducts(check);
  CheckEmbedding(check);
  for (const NormTypes& types : kNormTypes) CheckLayerNorm(check, types);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    CheckRmsNorm(check, type);
    for (const int64_t width : {128, 10}) CheckRotary(check, type, width);
  }
  CheckGroupNorm(check);
  CheckBatchNorm(check);
  CheckAttentions(check);
  CheckLoss(check);
  CheckDropout(check);
  CheckDevice(check, *device);
  CheckPrimitives(check, *device);
  return check.all_met();
}

int Main(int argc, char** argv) {
  CLI::App app("Checks kernels against float64.");
  std::string device = "sim:mem=1GiB";
  bool large = false;
  app.add_option("--device", device, "where: cuda:0,mem=16GiB");
  app.add_flag("--large", large, "sizes as on a GPU");
  CLI11_PARSE(app, argc, argv);
  try {
    const absl::StatusOr<bool> all_met = Run(device, large);
    if (all_met.ok()) return *all_met ? 0 : 1;
    std::fprintf(stderr, "kernels_check: %s\n", std::string(all_met.status().message()).c_str());
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "kernels_check: %s\n", error.what());
  }
  return 2;
}

}  // namespace
}  // namespace harmony::bench

int main(int argc, char** argv) { return harmony::bench::Main(argc, argv); }
