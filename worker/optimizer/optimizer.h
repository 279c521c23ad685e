#pragma once

// AdamW and SGD on fp32 parameters, with the gradient norm and clipping that go with them. The host
// worker runs it on the shared segment (protected_update.h), the plain trainer on its own memory:
// the same loops, the same bits, for any number of threads and any instruction set.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"
#include "worker/optimizer/kernels.h"
#include "worker/optimizer/thread_pool.h"

namespace harmony::worker {

// What a job fixes for all its steps.
struct OptimizerSettings {
  job::OptimizerKind kind = job::OptimizerKind::kAdamW;
  // Of the tensors that ask for it and have none of their own.
  double weight_decay = 0;  // AdamW: decoupled. SGD: added to the gradient, as PyTorch's SGD does
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0;  // SGD; 0: none
  bool nesterov = false;
  int moments = 2;  // that it keeps for each parameter: job::MomentsOf
};
OptimizerSettings SettingsOf(const job::JobSpec& job);

// What changes from step to step.
struct StepHyper {
  int64_t step = 1;  // counted from 1: the update leads to version `step`
  double learning_rate = 0;
  double clip_coefficient = 1;
};

// The buffers of a block: its weights, of the types that its tensors say, and ParamBlock::elements
// floats of each moment (v is null for SGD, and m without momentum) and, where the block has
// masters, of these.
struct BlockState {
  void* weights = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  float* masters = nullptr;
};

// A block's gradient is the sum of these (GradientTerms), each of the types that its tensors say:
// of its last reference, then (tied) of its first reference; of each reference its parts,
// ascending.
using BlockGradient = std::vector<const void*>;

// Makes the working copies of a block's weights from its masters.
void RoundMasters(const model::ParamBlock& block, const BlockState& state);

// Squared norm of a block's gradient in fp64: tensors in order, each in fixed chunks. Not finite
// exactly when the gradient is not.
double BlockSquaredNorm(const model::ParamBlock& block, const BlockGradient& gradient,
                        ThreadPool& pool, Isa isa = BestIsa());
// The global norm: square root of the sum over blocks, in block order.
double GradientNorm(absl::Span<const double> squared_block_norms);
// min(1, max_norm / (norm + 1e-6)).
double ClipCoefficient(double norm, double max_norm);

// ---- For protected_update.cc ----

// All terms of a gradient; UpdateElements fills in where a tensor's elements lie in them.
GradientTerms TermsOf(const model::ParamBlock& block, const BlockGradient& gradient);

// Updates elements [range.begin, range.end) of a block, in place: each tensor has the learning rate
// and the weight decay that its description says (model::TensorSpec).
// Of the range, what says where w and its copy are is filled in here. `half_written`: the old
// values of the vector at range.begin, which may be half-written; null: it is not.
void UpdateElements(const model::ParamBlock& block, const OptimizerSettings& settings,
                    const StepHyper& hyper, const BlockState& state, UpdateRange range,
                    const Kernels& kernels, const ipc::UndoSlot* half_written = nullptr);

}  // namespace harmony::worker
