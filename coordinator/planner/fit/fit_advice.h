#pragma once

// What to say about a job that fits no plan. PURE.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/planner/fit/plan_builder.h"

namespace harmony::planner {

// The model made anew for sequences of another length, or why it has none of that length; empty
// where nobody can say.
using ModelOfLength = std::function<absl::StatusOr<model::ModelSpec>(int64_t sequence_length)>;

// ResourceExhausted: the group that needs most of its device, in the finest grouping there is (or
// in `partition`, where that is given), the bytes that are missing, and settings that fit.
absl::Status DeviceTooSmall(const model::ModelSpec& model, const job::JobSpec& job,
                            const plan::MachineSpec& machine, int64_t microbatch, Division division,
                            const std::vector<model::LayerRange>& partition,
                            const ModelOfLength& of_length);

// A HostMemoryError, ResourceExhausted: what the arena of this plan needs, and what needs less.
absl::Status HostTooSmall(const model::ModelSpec& model, const job::JobSpec& job,
                          const plan::MachineSpec& machine, const plan::Plan& plan,
                          const ModelOfLength& of_length);

}  // namespace harmony::planner
