#include "coordinator/planner/plan_builder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "coordinator/core/kept_layout.h"

namespace harmony {
namespace {

constexpr int64_t kResidentGranule = 4096;
// Such a part of the step has to be won.
constexpr int64_t kWorthMoreHostMemory = 50;

}  // namespace

PlanBuilder::PlanBuilder(const ModelSpec& model, const JobSpec& job, const MachineSpec& machine,
                         int64_t microbatch, Division division)
    : model_(model), job_(job), machine_(machine), microbatch_(microbatch), division_(division) {
  for (const ParamBlock& block : model.blocks) {
    if (!block.tied()) untied_ += block.gradient_bytes;
  }
}

Plan PlanBuilder::Blank() const {
  Plan plan;
  plan.mode = division_.mode;
  plan.replicas = division_.replicas;
  plan.microbatch_size = microbatch_;
  plan.num_microbatches = static_cast<int>(job_.global_batch_size / microbatch_);
  plan.sequence_length = job_.sequence_length;
  plan.update = job_.DeferredUpdates() ? UpdateMode::kDeferred : UpdateMode::kEager;
  plan.clip = job_.max_grad_norm > 0;
  plan.optimizer_moments = job_.optim == OptimizerKind::kAdamW ? 2 : 0;
  // A device that runs all groups has one of them at work.
  const bool data = division_.mode == ParallelMode::kData;
  plan.boundary_banks = (data ? 1 : static_cast<int>(machine_.devices.size())) + 2;
  std::vector<std::string> roots;
  for (const DeviceSpec& device : machine_.devices) {
    if (!device.root.empty() && !absl::c_linear_search(roots, device.root)) {
      roots.push_back(device.root);
    }
    const auto root = absl::c_find(roots, device.root);
    const int number = device.root.empty() ? 0 : static_cast<int>(root - roots.begin()) + 1;
    plan.devices.push_back({device.usable(), {}, number});
  }
  return plan;
}

std::vector<int> PlanBuilder::ForwardSpans() const {
  const Plan shape = Blank();
  std::vector<int> spans = {1};
  if (job_.micro_batch_size > 0 || !SpansAllowed(model_, shape)) return spans;
  Bytes largest;
  for (const DevicePlan& device : shape.devices) largest = std::max(largest, device.memory);
  // Where there are forward tasks at all, layer 0 is in one of them.
  const auto fits = [&](int span) {
    return WorkspaceBound(model_, WorkspaceOf::kForward, {0, 0}, microbatch_ * span) <= largest;
  };
  const int most = shape.replica_microbatches();
  for (int span = 2; span <= most; ++span) {
    if (most % span == 0 && fits(span)) spans.push_back(span);
  }
  return spans;
}

bool PlanBuilder::Complete(Plan* plan, StepVisits* step) const {
  plan->gradient_ring = ArenaLayout::DefaultRing(model_, *plan);
  *step = VisitsOf(model_, *plan);
  std::vector<Bytes> workspace(plan->devices.size()), need(plan->devices.size());
  for (size_t v = 0; v < step->visits.size(); ++v) {
    const Visit& visit = step->visits[v];
    Bytes& most = workspace[visit.device];
    most = std::max(most, WorkspaceBoundOf(model_, *plan, visit));
    need[visit.device] = std::max(need[visit.device], TotalOf(step->items[v]));
  }
  bool fits = true;
  for (size_t d = 0; d < plan->devices.size(); ++d) {
    DevicePlan& device = plan->devices[d];
    const bool used = need[d].count() > 0;
    const int64_t left = std::max<int64_t>((device.memory - workspace[d]).count(), 0);
    device.resident = Bytes(used ? left / kResidentGranule * kResidentGranule : 0);
  }
  const KeptLayout kept(model_, *plan);
  for (size_t d = 0; d < plan->devices.size(); ++d) {
    fits = fits && need[d] + kept.bytes(static_cast<int>(d)) <= plan->devices[d].resident;
  }
  plan->arena_dynamic = ArenaLayout(model_, *plan).dynamic_bytes();
  return fits;
}

Bytes PlanBuilder::ArenaBytes(const Plan& plan) const { return ArenaLayout(model_, plan).end(); }

Bytes PlanBuilder::SegmentBytes(const Plan& plan) const {
  const Bytes arena = ArenaBytes(plan);
  return machine_.segment_for ? machine_.segment_for(arena) : arena;
}

bool PlanBuilder::FitsHost(const Plan& plan) const {
  return machine_.host_memory.count() == 0 || SegmentBytes(plan) <= machine_.host_memory;
}

Nanos PlanBuilder::Score(const Plan& plan, Nanos step) const {
  const bool large =
      plan.update == UpdateMode::kEager
          ? plan.gradient_ring > Bytes(untied_.count() / 2).AlignUp(kSlotAlignment) * plan.replicas
          : !job_.DeferredUpdates();
  return large ? Nanos(step.count() + step.count() / kWorthMoreHostMemory) : step;
}

}  // namespace harmony
