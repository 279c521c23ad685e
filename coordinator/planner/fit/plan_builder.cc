#include "coordinator/planner/fit/plan_builder.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/memory/kept_layout.h"

namespace harmony::planner {
namespace {

// Such a part of the step has to be won by what takes half the gradients' bytes more, and no more
// by what takes more still; by what takes less, in proportion less. Nothing has to be won on a host
// of whose memory half the gradients' bytes are less than such a part.
constexpr double kWorthMoreHostMemory = 0.02, kLittleOfHost = 0.05;
// Ranges of a step that unequal devices share out.
constexpr int kMostShares = 16;

}  // namespace

DeviceSets SetsOf(const plan::Plan& plan) {
  bool single = true, all = true;
  const plan::DeviceSet every = AllDevices(plan);
  for (const auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const plan::LayerGroup& group : *groups) {
      single = single && group.devices.size() == 1;
      all = all && group.devices == every;
    }
  }
  return single ? DeviceSets::kSingle : all ? DeviceSets::kAll : DeviceSets::kAny;
}

Division DivisionOf(const plan::Plan& plan) {
  Division division{.sets = SetsOf(plan), .replicas = plan.replicas};
  division.pass_weights = plan.pass_weights;
  for (const plan::LayerGroup& group : plan.backward_groups) {
    const int together = group.devices.size() / std::max(group.gradient_parts, 1);
    division.add_up = std::max(division.add_up, together);
  }
  return division;
}

PlanBuilder::PlanBuilder(const model::ModelSpec& model, const job::JobSpec& job,
                         const plan::MachineSpec& machine, int64_t microbatch, Division division)
    : model_(model), job_(job), machine_(machine), microbatch_(microbatch), division_(division) {
  for (const model::ParamBlock& block : model.blocks) {
    if (!block.tied()) untied_ += block.gradient_bytes;
  }
  alike_devices_ = absl::c_all_of(machine.devices, [&](plan::DeviceSpec device) {
    device.ordinal = machine.devices.front().ordinal;
    device.cuda_ordinal = machine.devices.front().cuda_ordinal;
    device.worker_copies = machine.devices.front().worker_copies;
    return ToString(device) == ToString(machine.devices.front());
  });
  replicas_ = division.replicas > 0 ? division.replicas : job.AutoReplicas(microbatch);
}

plan::Plan PlanBuilder::Blank() const {
  plan::Plan plan;
  plan.replicas = replicas_;
  plan.microbatch_size = microbatch_;
  plan.num_microbatches = static_cast<int>(job_.global_batch_size / microbatch_);
  plan.sequence_length = job_.sequence_length;
  plan.update = job_.DeferredUpdates() ? job::UpdateMode::kDeferred : job::UpdateMode::kEager;
  plan.gradient_dtype = model_.gradient_dtype;
  plan.clip = job_.max_grad_norm > 0;
  plan.optimizer_moments = job::MomentsOf(job_);
  // Where all devices run all groups, one of these is at work at a time.
  const bool all = division_.sets == DeviceSets::kAll;
  plan.boundary_banks = (all ? 1 : static_cast<int>(machine_.devices.size())) + 2;
  std::vector<std::string> roots;
  for (const plan::DeviceSpec& device : machine_.devices) {
    if (!device.root.empty() && !absl::c_linear_search(roots, device.root)) {
      roots.push_back(device.root);
    }
    const auto root = absl::c_find(roots, device.root);
    const int number = device.root.empty() ? 0 : static_cast<int>(root - roots.begin()) + 1;
    plan.devices.push_back({device.usable(), {}, number});
  }
  plan.pass_weights = division_.pass_weights && division_.sets != DeviceSets::kSingle;
  const plan::LayerGroup all_devices{{}, AllDevices(plan)};
  int shard = all_devices.devices.size() - 1;
  while (shard >= 0 && plan::WeightPeer(plan, all_devices, shard) < 0) --shard;
  plan.pass_weights = shard >= 0;
  return plan;
}

std::vector<plan::DeviceSet> PlanBuilder::DeviceChoices() const {
  const plan::Plan shape = Blank();
  const plan::DeviceSet all = AllDevices(shape);
  if (division_.sets == DeviceSets::kAll) return {all};
  std::vector<plan::DeviceSet> choices;
  const int devices = static_cast<int>(shape.devices.size());
  for (int d = 0; d < devices; ++d) choices.emplace_back(d);
  if (division_.sets == DeviceSets::kSingle) return choices;
  for (int count = 2; count <= all.size(); count *= 2) {
    for (int first = 0; first + count <= devices; first += count) {
      std::vector<int> some(count);
      std::iota(some.begin(), some.end(), first);
      choices.push_back(plan::DeviceSet::Of(some));
    }
  }
  const bool known = plan::AllPaced(machine_.devices);
  const int finest = std::min(replicas_, kMostShares);
  for (int entries = 2; known && !alike_devices_ && entries <= finest; entries *= 2) {
    plan::DeviceSet shares = SharesBySpeed(entries);
    // A set whose entries come in pairs is the one of half as many.
    const bool fresh =
        shares.num_shards() > 1 && !shares.InPairs() && !absl::c_linear_search(choices, shares);
    if (fresh) choices.push_back(std::move(shares));
  }
  return choices;
}

plan::DeviceSet PlanBuilder::SharesBySpeed(int entries) const {
  std::vector<int> shares(machine_.devices.size());
  const auto after_one_more = [&](size_t d) {
    return (shares[d] + 1) / machine_.devices[d].flops.value;
  };
  for (int i = 0; i < entries; ++i) {
    size_t next = 0;
    for (size_t d = 1; d < shares.size(); ++d) {
      if (after_one_more(d) < after_one_more(next)) next = d;
    }
    ++shares[next];
  }
  std::vector<int> set;
  for (size_t d = 0; d < shares.size(); ++d) set.insert(set.end(), shares[d], static_cast<int>(d));
  return plan::DeviceSet::Of(set);
}

std::vector<int> PlanBuilder::ForwardTaskSizes() const {
  const plan::Plan shape = Blank();
  std::vector<int> forward_task_sizes = {1};
  if (job_.micro_batch_size > 0 || !plan::LargerForwardTasksAllowed(model_, shape))
    return forward_task_sizes;
  Bytes largest;
  for (const plan::DevicePlan& device : shape.devices) largest = std::max(largest, device.memory);
  // Where there are forward tasks at all, layer 0 is in one of them.
  const auto fits = [&](int task_microbatches) {
    return model::WorkspaceBound(model_, model::WorkspaceOf::kForward, {0, 0},
                                 microbatch_ * task_microbatches) <= largest;
  };
  const int most = shape.num_microbatches / DeviceChoices().front().size();
  for (int task_microbatches = 2; task_microbatches <= most; ++task_microbatches) {
    if (most % task_microbatches == 0 && fits(task_microbatches))
      forward_task_sizes.push_back(task_microbatches);
  }
  return forward_task_sizes;
}

bool PlanBuilder::Complete(plan::Plan* plan, StepExecutions* step) const {
  const int least = std::min(division_.least_parts, plan->replicas);
  for (plan::LayerGroup& group : plan->backward_groups) {
    const int fewest = division_.add_up > 1 ? plan::FewestParts(*plan, group) : 1;
    group.gradient_parts = std::max({least, fewest, group.devices.size() / division_.add_up});
  }
  plan::TieParts(model_, *plan);
  for (;;) {
    if (CompleteAsDivided(plan, step)) return true;
    if (!RaiseParts(*step, plan)) return false;
  }
}

bool PlanBuilder::RaiseParts(const StepExecutions& step, plan::Plan* plan) const {
  const dispatch::KeptLayout kept(model_, *plan);
  const std::vector<plan::LayerGroup> laid_out = plan->backward_groups;
  bool raised = false;
  for (size_t v = 0; v < step.executions.size(); ++v) {
    const dispatch::GroupExecution& execution = step.executions[v];
    if (execution.kind == dispatch::ExecutionKind::kForward) continue;
    const Bytes room = plan->devices[execution.device].resident - kept.bytes(execution.device);
    Bytes need = dispatch::TotalOf(step.items[v]), buffer;  // one of each reference
    if (need <= room) continue;
    for (int reference : execution.references) {
      const model::ParamBlock& block = model_.blocks[model_.references[reference].block];
      buffer += block.accumulator_bytes.AlignUp(kSlotAlignment);
    }
    int parts = laid_out[execution.group].gradient_parts;
    for (; need > room && parts < plan->replicas; parts *= 2) need -= buffer;
    if (need > room) {  // with one buffer of each, too
      plan->backward_groups = laid_out;
      return false;
    }
    int& most = plan->backward_groups[execution.group].gradient_parts;
    raised |= parts > most;
    most = std::max(most, parts);
  }
  if (raised) plan::TieParts(model_, *plan);
  return raised;
}

bool PlanBuilder::CompleteAsDivided(plan::Plan* plan, StepExecutions* step) const {
  plan->gradient_ring = plan::ArenaLayout::DefaultRing(model_, *plan);
  *step = ExecutionsOf(model_, *plan, alike_devices_ ? DevicesForAll(*plan) : 0);
  std::vector<Bytes> workspace(plan->devices.size()), need(plan->devices.size());
  for (size_t v = 0; v < step->executions.size(); ++v) {
    const dispatch::GroupExecution& execution = step->executions[v];
    Bytes& most = workspace[execution.device];
    most = std::max(most, dispatch::WorkspaceBoundOf(model_, *plan, execution));
    need[execution.device] = std::max(need[execution.device], dispatch::TotalOf(step->items[v]));
  }
  for (int d : plan->backward_groups.back().devices) {
    if (step->for_all == 0) break;
    workspace[d] = workspace[d % step->for_all];
    need[d] = need[d % step->for_all];
  }
  bool fits = true;
  for (size_t d = 0; d < plan->devices.size(); ++d) {
    plan::DevicePlan& device = plan->devices[d];
    const bool used = need[d].count() > 0;
    const int64_t left = std::max<int64_t>((device.memory - workspace[d]).count(), 0);
    device.resident = Bytes(used ? left / kResidentGranule * kResidentGranule : 0);
  }
  const dispatch::KeptLayout kept(model_, *plan);
  for (size_t d = 0; d < plan->devices.size(); ++d) {
    fits = fits && need[d] + kept.bytes(static_cast<int>(d)) <= plan->devices[d].resident;
  }
  plan->arena_dynamic = plan::ArenaLayout(model_, *plan).dynamic_bytes();
  return fits;
}

Bytes PlanBuilder::ArenaBytes(const plan::Plan& plan) const {
  return command::PersistentBytes(model_, plan.optimizer_moments) + plan.arena_dynamic;
}

Bytes PlanBuilder::SegmentBytes(const plan::Plan& plan) const {
  const Bytes arena = ArenaBytes(plan);
  return machine_.segment_for ? machine_.segment_for(arena) : arena;
}

bool PlanBuilder::FitsHost(const plan::Plan& plan) const {
  return machine_.host_memory.count() == 0 || SegmentBytes(plan) <= machine_.host_memory;
}

Nanos PlanBuilder::Score(const plan::Plan& plan, Nanos step) const {
  if (!FitsHost(plan)) {
    return Nanos::FromSeconds(static_cast<double>(SegmentBytes(plan).count()) /
                              static_cast<double>(machine_.host_memory.count()));
  }
  const double half = untied_.count() / 2.0;
  if (half < static_cast<double>(machine_.host_memory.count()) * kLittleOfHost) return step;
  // At least what data parallelism takes: that some groups run on fewer devices costs nothing more.
  const int shards = division_.sets == DeviceSets::kSingle ? 1 : AllDevices(plan).size();
  const Bytes usual =
      std::max(plan::ArenaLayout::UsualRing(model_, plan), Bytes(untied_.count() * shards / 2));
  double more = 0;  // in halves of the gradients
  if (plan.update == job::UpdateMode::kEager) {
    more = (plan.gradient_ring - usual).count() / std::max(half, 1.0);
  } else if (!job_.DeferredUpdates()) {
    more = 1;
  }
  return Nanos::FromSeconds(step.seconds() *
                            (1 + kWorthMoreHostMemory * std::clamp(more, 0.0, 1.0)));
}

}  // namespace harmony::planner
