#include "worker/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/ipc/segment_layout.h"
#include "worker/optimizer/element_math.h"

namespace harmony::worker {
namespace {

// Elements of a tensor whose squares are summed at a time. Part of the result: never change it
// with threads or instruction set.
constexpr int64_t kNormChunkElements = 64 * 1024;

// The number of a tensor's first element among those that an update goes through.
int64_t FirstElement(const model::TensorSpec& tensor) {
  return tensor.moment.offset.count() / SizeOf(DType::kF32).count();
}

// What is the same for all tensors, and the step size and decay of one.
AdamWConstants AdamWConstantsOf(const OptimizerSettings& s, const StepHyper& h, double rate,
                                double weight_decay) {
  const double step = static_cast<double>(h.step);
  AdamWConstants c;
  c.clip = static_cast<float>(h.clip_coefficient);
  c.decay = static_cast<float>(1.0 - rate * weight_decay);  // 1, if 0: its product changes nothing
  c.lerp = static_cast<float>(1.0 - s.beta1);
  c.beta2 = static_cast<float>(s.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - s.beta2);
  c.step_size = static_cast<float>(rate / (1.0 - std::pow(s.beta1, step)));
  c.bias2_sqrt = static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, step)));
  c.epsilon = static_cast<float>(s.epsilon);
  return c;
}

SgdConstants SgdConstantsOf(const OptimizerSettings& s, const StepHyper& h, double rate,
                            double weight_decay) {
  SgdConstants c;
  c.clip = static_cast<float>(h.clip_coefficient);
  c.weight_decay = static_cast<float>(weight_decay);
  c.learning_rate = static_cast<float>(rate);
  c.momentum = static_cast<float>(s.momentum);
  c.nesterov = s.nesterov;
  return c;
}

// How a tensor is updated, as far as tensors differ in that.
struct Treatment {
  model::TensorRole role = model::TensorRole::kTrained;
  double weight_decay = 0;
  double learning_rate_factor = 1;
  bool has_master = false, bf16_gradient = false;
  // From the start of the block to where element 0 would be among the weights, or the gradients,
  // had all their type: other types before may move a tensor.
  Bytes weight_shift, gradient_shift;
  bool operator==(const Treatment&) const = default;
};

Treatment TreatmentOf(const model::TensorSpec& tensor, const OptimizerSettings& settings) {
  const bool narrow = tensor.has_master() && tensor.gradient.dtype == DType::kBF16;
  const auto shift = [&](const model::StoredAs& form, bool own_type) {
    return form.offset - SizeOf(own_type ? form.dtype : DType::kF32) * FirstElement(tensor);
  };
  return {tensor.role,
          tensor.own_weight_decay.value_or(tensor.weight_decay ? settings.weight_decay : 0),
          tensor.learning_rate_factor,
          tensor.has_master(),
          narrow,
          shift(tensor.weight, tensor.has_master()),
          shift(tensor.gradient, narrow)};
}

// Tensors that lie behind each other and are updated alike.
struct Run {
  int64_t begin = 0, end = 0;
  Treatment treatment;
};

// Calls fn(run) for the runs of a block's tensors within [begin, end). A gap behind a tensor goes
// with it (gaps stay zero).
template <typename Fn>
void ForEachRun(const model::ParamBlock& block, const OptimizerSettings& settings, int64_t begin,
                int64_t end, Fn&& fn) {
  const std::vector<model::TensorSpec>& tensors = block.tensors;
  size_t i = 0;
  while (i < tensors.size() && tensors[i].role != model::TensorRole::kFixed) {
    const Treatment treatment = TreatmentOf(tensors[i], settings);
    size_t next = i + 1;
    while (next < tensors.size() && TreatmentOf(tensors[next], settings) == treatment) ++next;
    // Those behind are fixed, and have no gradient, or begin where they begin as weights.
    const bool last = next == tensors.size() || tensors[next].role == model::TensorRole::kFixed;
    Run run{FirstElement(tensors[i]), last ? block.elements() : FirstElement(tensors[next]),
            treatment};
    run.begin = std::max(begin, run.begin);
    run.end = std::min(end, run.end);
    if (run.begin < run.end) fn(run);
    i = next;
  }
}

template <typename T>
T* WeightsFrom(const BlockState& state, Bytes shift) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(state.weights) + shift.count());
}

// Puts the old values of the vector at range.begin back.
void RestoreVector(const ipc::UndoSlot& slot, const UpdateRange& range, int64_t end) {
  const int64_t count = std::min(static_cast<int64_t>(ipc::kVectorElements), end - range.begin);
  const size_t bytes = static_cast<size_t>(count) * sizeof(slot.w[0]);
  std::memcpy(range.w + range.begin, slot.w, bytes);
  if (range.m != nullptr) std::memcpy(range.m + range.begin, slot.m, bytes);
  if (range.v != nullptr) std::memcpy(range.v + range.begin, slot.v, bytes);
  asm volatile("" ::: "memory");
}

// What lies in the gradient's place becomes the weight: doing it again changes nothing, so a death
// in the middle needs no undo.
void Replace(const UpdateRange& range) {
  std::memcpy(range.w + range.begin, NumbersOf<float>(range.gradients, 0) + range.begin,
              static_cast<size_t>(range.end - range.begin) * sizeof(float));
}

}  // namespace

OptimizerSettings SettingsOf(const job::JobSpec& job) {
  return {.kind = job.optim,
          .weight_decay = job.weight_decay,
          .beta1 = job.adam_beta1,
          .beta2 = job.adam_beta2,
          .epsilon = job.adam_epsilon,
          .momentum = job.momentum,
          .nesterov = job.nesterov,
          .moments = job::MomentsOf(job)};
}

GradientTerms TermsOf(const model::ParamBlock& block, const BlockGradient& gradient) {
  GradientTerms terms;
  terms.data = gradient.data();
  terms.references = std::max(static_cast<int>(block.references.size()), 1);
  terms.parts = static_cast<int>(gradient.size()) / terms.references;
  return terms;
}

void UpdateElements(const model::ParamBlock& block, const OptimizerSettings& settings,
                    const StepHyper& hyper, const BlockState& state, UpdateRange range,
                    const Kernels& kernels, const ipc::UndoSlot* half_written) {
  range.m = state.m;
  range.v = state.v;
  ForEachRun(block, settings, range.begin, range.end, [&](const Run& run) {
    range.begin = run.begin;
    range.end = run.end;
    range.gradients.shift = run.treatment.gradient_shift;
    range.gradients.bf16 = run.treatment.bf16_gradient;
    const Bytes shift = run.treatment.weight_shift;
    range.w = run.treatment.has_master ? state.masters : WeightsFrom<float>(state, shift);
    range.copy = run.treatment.has_master ? WeightsFrom<uint16_t>(state, shift) : nullptr;
    if (half_written != nullptr) RestoreVector(*half_written, range, run.end);
    half_written = nullptr;
    // A factor of 1 leaves the bits as they are without one.
    const double rate = hyper.learning_rate * run.treatment.learning_rate_factor;
    const double decay = run.treatment.weight_decay;
    if (run.treatment.role == model::TensorRole::kStatistic) {
      Replace(range);
    } else if (settings.kind == job::OptimizerKind::kSgd) {
      kernels.sgd(range, SgdConstantsOf(settings, hyper, rate, decay));
    } else {
      kernels.adamw(range, AdamWConstantsOf(settings, hyper, rate, decay));
    }
  });
}

void RoundMasters(const model::ParamBlock& block, const BlockState& state) {
  for (const model::TensorSpec& tensor : block.tensors) {
    if (!tensor.has_master()) continue;
    const float* const from = state.masters + FirstElement(tensor);
    auto* const to = WeightsFrom<uint16_t>(state, tensor.weight.offset);
    for (int64_t i = 0; i < tensor.elements; ++i) to[i] = RoundToBf16(from[i]);
  }
}

double BlockSquaredNorm(const model::ParamBlock& block, const BlockGradient& gradient,
                        ThreadPool& pool, Isa isa) {
  struct Piece {
    const model::TensorSpec* tensor;
    int64_t begin, elements;
  };
  std::vector<Piece> pieces;
  for (const model::TensorSpec& tensor : block.tensors) {
    if (tensor.role != model::TensorRole::kTrained) continue;
    for (int64_t at = 0; at < tensor.elements; at += kNormChunkElements) {
      pieces.push_back({&tensor, at, std::min(kNormChunkElements, tensor.elements - at)});
    }
  }
  std::vector<double> sums(pieces.size());
  const Kernels& kernels = KernelsFor(isa);
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    GradientTerms terms = TermsOf(block, gradient);
    terms.shift = piece.tensor->gradient.offset;
    terms.bf16 = piece.tensor->gradient.dtype == DType::kBF16;
    sums[static_cast<size_t>(i)] =
        kernels.squared_norm(terms, piece.begin, piece.begin + piece.elements);
  });
  // Chunks within a tensor first, then tensors.
  double total = 0, tensor_sum = 0;
  size_t i = 0;
  for (const model::TensorSpec& tensor : block.tensors) {
    if (tensor.role != model::TensorRole::kTrained) continue;
    tensor_sum = 0;
    for (int64_t at = 0; at < tensor.elements; at += kNormChunkElements) tensor_sum += sums[i++];
    total += tensor_sum;
  }
  return total;
}

double GradientNorm(absl::Span<const double> squared_block_norms) {
  double sum = 0;
  for (double value : squared_block_norms) sum += value;
  return std::sqrt(sum);
}

double ClipCoefficient(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace harmony::worker
