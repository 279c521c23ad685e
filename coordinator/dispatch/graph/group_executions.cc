#include "coordinator/dispatch/graph/group_executions.h"

#include <algorithm>
#include <numeric>

#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"

namespace harmony::dispatch {

const plan::LayerGroup& PlannedGroup(const plan::Plan& plan, ExecutionKind kind, int group) {
  return kind == ExecutionKind::kForward ? plan.forward_groups[group] : plan.backward_groups[group];
}

GroupExecution PlannedExecution(const model::ModelSpec& model, const plan::Plan& plan,
                                ExecutionKind kind, int group, int shard, int last) {
  const bool forward = kind == ExecutionKind::kForward;
  const plan::LayerGroup& planned = PlannedGroup(plan, kind, group);
  const model::LayerRange layers{planned.layers.first, std::min(planned.layers.last, last)};
  GroupExecution execution;
  execution.kind = kind;
  execution.group = group;
  execution.shard = shard;
  const plan::Shard own = plan::ShardOf(plan, planned, shard);
  execution.device = own.device;
  execution.shard_first = own.first;
  execution.shard_count = own.count;
  execution.layers = layers;
  execution.task_microbatches = forward ? plan.microbatches_per_forward_task : 1;
  execution.microbatches.resize(own.count / execution.task_microbatches);
  std::iota(execution.microbatches.begin(), execution.microbatches.end(),
            own.first / execution.task_microbatches);
  if (!forward) {
    execution.sum = plan::SumOf(plan, planned, own);
    const int replicas = execution.sum.microbatches / plan.replica_microbatches();
    execution.gradient_buffers = model::SumBuffers(replicas) + execution.sum.taken;
  }
  execution.slots = std::min(plan.stream_slots, static_cast<int>(execution.microbatches.size()));
  execution.blocks = plan::BlocksOf(model, layers, kind == ExecutionKind::kBackward);
  execution.keeper = forward ? plan::KeeperOf(plan, planned) : planned.keep_weights ? group : -1;
  execution.own_blocks = static_cast<int>(execution.blocks.size());
  if (execution.keeper >= 0) {  // what only the forward needs is not kept
    const plan::Indices kept = plan::BlocksOf(model, layers, true);
    const auto unkept = std::stable_partition(
        execution.blocks.begin(), execution.blocks.end(),
        [&](int b) { return std::find(kept.begin(), kept.end(), b) == kept.end(); });
    execution.own_blocks = static_cast<int>(unkept - execution.blocks.begin());
  }
  execution.activations = forward                    ? plan::ActivationKeeperOf(plan, planned)
                          : planned.keep_activations ? group
                                                     : -1;
  if (layers != planned.layers) execution.activations = -1;  // only a stash is wanted
  execution.references = plan::ReferencesOf(model, layers);
  execution.inputs = model::InputsOf(model, layers);
  execution.input = execution.has_output_gradient() ? plan::StashBoundary(planned) : layers.first;
  execution.has_input_gradient = !forward && layers.first > 0;
  bool last_kept = false;
  auto add_output = [&](int boundary, bool kept) {
    execution.outputs.push_back(boundary);
    execution.output_kept.push_back(kept);
  };
  for (const plan::StashSpec& stash : plan::StashesOf(plan, execution.input, layers.last + 1)) {
    const bool kept_here =
        stash.kept && plan::RunsOnDeviceOf(plan, plan.backward_groups[stash.group], own);
    if (stash.boundary == execution.input) execution.input_kept = kept_here;
    if (!forward || stash.boundary <= layers.first) continue;
    if (stash.boundary <= layers.last) add_output(stash.boundary, kept_here);
    if (stash.boundary == layers.last + 1) last_kept = kept_here;
  }
  if (forward) add_output(layers.last + 1, last_kept);
  return execution;
}

command::TaskKind TaskOf(ExecutionKind kind) {
  return kind == ExecutionKind::kForward    ? command::TaskKind::kForward
         : kind == ExecutionKind::kBackward ? command::TaskKind::kBackward
                                            : command::TaskKind::kForwardBackward;
}

model::BackwardTask BackwardTaskOf(const GroupExecution& execution) {
  return execution.kind == ExecutionKind::kFused ? model::BackwardTask::kFused
         : execution.activations >= 0            ? model::BackwardTask::kKept
                                                 : model::BackwardTask::kRecomputes;
}

ItemSizes LayOutItems(const model::ModelSpec& model, const plan::Plan& plan,
                      GroupExecution& execution) {
  Bytes in, out;
  const auto take = [](Bytes& end, Bytes size) {
    const Bytes at = end;
    end = (end + size).AlignUp(kSlotAlignment);
    return at;
  };
  const auto place = [&](Bytes size) { return take(in, size); };
  const int64_t samples = plan.microbatch_size * execution.task_microbatches;
  const auto hidden = [&](int boundary) { return model::BoundaryBytes(model, boundary, samples); };
  const auto gradient = [&](int boundary) {
    return model::BoundaryGradientBytes(model, boundary, samples);
  };
  execution.inputs_at.clear();
  for (int input : execution.inputs) {
    execution.inputs_at.push_back(place(model::InputBytes(model, input, samples)));
  }
  if (execution.has_input() && !execution.input_kept) {
    execution.input_at = place(hidden(execution.input));
  }
  if (execution.has_output_gradient())
    execution.output_gradient_at = place(gradient(execution.layers.last + 1));
  execution.in_stride = in;
  if (execution.has_input_gradient) take(out, gradient(execution.layers.first));
  execution.output_at.resize(execution.outputs.size());
  for (size_t i = 0; i < execution.outputs.size(); ++i) {
    if (!execution.output_kept[i]) execution.output_at[i] = take(out, hidden(execution.outputs[i]));
  }
  execution.out_stride = out;

  ItemSizes sizes;
  sizes.reserve(static_cast<size_t>(execution.own_blocks) + execution.references.size() + 4);
  const auto next = [&] { return static_cast<int64_t>(sizes.size()); };
  execution.first_weight = next();
  for (int i = 0; i < execution.own_blocks; ++i) {
    sizes.push_back(model.blocks[execution.blocks[i]].weight_bytes);
  }
  execution.loss = next();
  if (execution.has_loss())
    sizes.push_back(Bytes(sizeof(command::LossSlot)) * execution.shard_count);
  execution.in = next();
  sizes.push_back(execution.in_stride * execution.slots);
  execution.out = next();
  sizes.push_back(execution.out_stride * execution.slots);
  execution.first_gradient = execution.waiting_sums = next();
  if (execution.kind != ExecutionKind::kForward) {
    execution.gradient_bytes = Bytes(0);
    for (int reference : execution.references) {
      const model::ParamBlock& block = model.blocks[model.references[reference].block];
      sizes.push_back(block.accumulator_bytes);
      take(execution.gradient_bytes, block.accumulator_bytes);
    }
    execution.waiting_sums = next();
    if (execution.gradient_buffers > 1) {
      const bool from_first = FirstBuffer(execution, execution.microbatches.front()) == 0;
      execution.waiting_from =
          from_first && execution.sum.taken == 0 ? plan.replica_microbatches() : 0;
    }
    sizes.push_back(execution.gradient_bytes * (execution.gradient_buffers - 1));
  }
  execution.end_item = next();
  return sizes;
}

int FirstBuffer(const GroupExecution& execution, int microbatch) {
  const auto& all = execution.microbatches;
  const auto behind = all.end() - std::upper_bound(all.begin(), all.end(), microbatch);
  return behind / execution.sum.microbatches % 2 == 0 ? 0 : execution.gradient_buffers - 1;
}

int TakenBuffer(const GroupExecution& taker, const GroupExecution& giver) {
  const int size = giver.sum.microbatches << giver.sum.taken;
  int buffer = taker.sum.taken - 1;
  for (int least = taker.sum.microbatches; least < size; least *= 2) --buffer;
  return buffer;
}

namespace {

model::WorkspaceOf WorkspaceTaskOf(const GroupExecution& execution) {
  const bool keeps = execution.activations >= 0;
  if (execution.kind == ExecutionKind::kForward) {
    return keeps ? model::WorkspaceOf::kKeepingForward : model::WorkspaceOf::kForward;
  }
  return keeps ? model::WorkspaceOf::kKeptBackward : model::WorkspaceOf::kBackward;
}

}  // namespace

Bytes WorkspaceBoundOf(const model::ModelSpec& model, const plan::Plan& plan,
                       const GroupExecution& execution) {
  return model::WorkspaceBound(model, WorkspaceTaskOf(execution), execution.layers,
                               plan.microbatch_size * execution.task_microbatches);
}

Bytes WorkspacePeakOf(const model::ModelSpec& model, const plan::Plan& plan,
                      const GroupExecution& execution, int threads) {
  return model::WorkspacePeak(model, WorkspaceTaskOf(execution), execution.layers,
                              plan.microbatch_size * execution.task_microbatches, threads);
}

Bytes TotalOf(absl::Span<const Bytes> items) {
  Bytes total;
  for (Bytes size : items) total += size.AlignUp(kSlotAlignment);
  return total;
}

}  // namespace harmony::dispatch
