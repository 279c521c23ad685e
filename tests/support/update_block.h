#pragma once

// An update as it is defined, without what lets it survive being killed: what protected ones are
// held against, and by what plain trainers train.

#include <algorithm>
#include <cstdint>

#include "common/ipc/segment.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::testing_support {

// One step, in place. Each tensor has the learning rate and the weight decay that its description
// says (model::TensorSpec).
inline void UpdateBlock(const model::ParamBlock& block, const worker::OptimizerSettings& settings,
                        const worker::StepHyper& hyper, const worker::BlockState& state,
                        const worker::BlockGradient& gradient, worker::ThreadPool& pool,
                        worker::Isa isa = worker::BestIsa()) {
  const worker::Kernels& kernels = worker::KernelsFor(isa);
  const int64_t chunk = static_cast<int64_t>(ipc::kUpdateChunkElements);
  pool.ParallelFor(ipc::UpdateChunks(block.elements()), [&](int64_t i) {
    worker::UpdateRange range;
    range.gradients = worker::TermsOf(block, gradient);
    range.begin = i * chunk;
    range.end = std::min(block.elements(), range.begin + chunk);
    worker::UpdateElements(block, settings, hyper, state, range, kernels);
  });
}

}  // namespace harmony::testing_support
