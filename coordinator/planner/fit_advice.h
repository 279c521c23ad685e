#pragma once

// What to say about a job that fits no plan. PURE.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/planner/moves.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {

// The model made anew for sequences of another length; empty where its samples have none.
using ModelOfLength = std::function<ModelSpec(int64_t sequence_length)>;

// ResourceExhausted: the group that needs most of its device, in the finest grouping there is (or
// in `partition`, where that is given), the bytes that are missing, and settings that fit.
absl::Status DeviceTooSmall(const ModelSpec& model, const JobSpec& job, const MachineSpec& machine,
                            int64_t microbatch, Division division,
                            const std::vector<LayerRange>& partition,
                            const ModelOfLength& of_length);

// The plan after small changes that need less of the host, as far as they lead.
Plan WithLeastOfHost(const PlanBuilder& builder, const MoveRules& rules, Plan plan);

// ResourceExhausted: what the arena of this plan needs, and what needs less.
absl::Status HostTooSmall(const ModelSpec& model, const JobSpec& job, const MachineSpec& machine,
                          const Plan& plan, const ModelOfLength& of_length);

}  // namespace harmony
