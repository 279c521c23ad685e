#pragma once

// Our search on an imported profile. PURE.
//
// For each microbatch size: seeds (what our search under the published cost model finds, balanced
// groups in many numbers), and random changes of the best of them, judged by an estimate
// (step_estimate.h). The most promising sizes are searched further; the best plans are rehearsed by
// the dispatcher, changed and rehearsed again, and the very best simulated whole.

#include <cstdint>
#include <functional>

#include "coordinator/planner/imported/imported_model.h"
#include "coordinator/planner/search.h"

namespace harmony {

struct ImportedSearchOptions {
  // Runs body(0..count-1), in any order and possibly at once.
  std::function<void(int count, const std::function<void(int)>& body)> for_each =
      [](int count, const std::function<void(int)>& body) {
        for (int i = 0; i < count; ++i) body(i);
      };
};

struct ImportedResult {
  Plan plan;  // data parallel: of one GPU
  Estimate estimate;
  Nanos lower_bound;  // of all plans of its microbatch size
  int64_t bounded = 0, simulations = 0;
  int sizes = 0;  // microbatch sizes that fit
};

// The fastest plan of a step on the machine's GPUs. Data parallel: a GPU each runs the same plan on
// its share of the samples and of the host link, and the gradients are added up in no time (as
// JudgeSchedule has it): the result is the plan of one GPU. Depends on its arguments only.
// ResourceExhausted: nothing fits.
absl::StatusOr<ImportedResult> SearchImported(const paper::LayerProfile& profile,
                                              const paper::Machine& machine, paper::Mode mode,
                                              int64_t minibatch,
                                              const ImportedSearchOptions& options = {});

}  // namespace harmony
