// StepBuilder: what becomes of gradients. They leave the devices, or go to the device that adds
// them to its own; the host updates with them.

#include <vector>

#include "coordinator/dispatch/graph/step_builder.h"

namespace harmony::dispatch {

void StepBuilder::AddPartTail(int64_t execution_id, int position) {
  GroupExecution& execution = graph_.execution(execution_id);
  const NodeId last = execution.positions[position].compute;
  if (execution.kind == ExecutionKind::kFused) AddLossesOut(execution_id, position);
  const plan::LayerGroup& group = plan_.backward_groups[execution.group];
  const int part = execution.microbatches[position] / plan_.part_microbatches(group);
  const bool passed = execution.sum.given_to >= 0;
  if (passed) execution.taker = backward_executions_[execution.group][execution.sum.given_to];
  // In the order in which the task of the next part that awaits them, going back, comes to them.
  for (size_t i = execution.references.size(); i-- > 0;) {
    execution.last_sum = Add(passed ? NodeKind::kPassSum : NodeKind::kGradientOut, execution_id,
                             static_cast<int>(i), execution.references[i], {last});
    graph_.node(execution.last_sum).part = part;
  }
}

void StepBuilder::AddLossesOut(int64_t execution_id, int position) {
  GroupExecution& execution = graph_.execution(execution_id);
  const int each = plan_.loss_microbatches();
  const int end = execution.microbatches[position] + 1, first = end - execution.sum.microbatches;
  for (int part = first / each; part * each < end; ++part) {
    execution.last_out =
        Add(NodeKind::kLossOut, execution_id, 0, 0, {execution.positions[position].compute});
    graph_.node(execution.last_out).part = part;
    losses_.push_back(execution.last_out);
  }
}

NodeId StepBuilder::SumsTaken(const GroupExecution& execution) {
  const plan::LayerGroup& group = plan_.backward_groups[execution.group];
  const plan::Shard own = plan::ShardOf(plan_, group, execution.shard);
  NodeId before = kNoNode;
  for (int number = 0; number < execution.sum.taken; ++number) {
    const int giver = plan::GiverOf(plan_, group, own, number);
    const NodeId last = graph_.execution(backward_executions_[execution.group][giver]).last_sum;
    for (int i = 0; before != kNoNode && i < static_cast<int>(execution.references.size()); ++i) {
      graph_.AddDep(CopyOf(last, i), CopyOf(before, i));
    }
    before = last;
  }
  return before;
}

void StepBuilder::AddLastCommits(const GroupExecution& execution, NodeIds& nodes) const {
  if (execution.last_out != kNoNode) nodes.push_back(execution.last_out);
  if (execution.sum.given_to < 0) nodes.push_back(execution.last_sum);
}

NodeIds StepBuilder::LastCommits(const GroupExecution& execution) const {
  const plan::LayerGroup& group = plan_.backward_groups[execution.group];
  const int part = plan_.part_microbatches(group);
  NodeIds nodes;
  const int first = execution.shard_first / part * part;
  for (int shard = plan::ShardWith(plan_, group, first);
       shard <= plan::ShardWith(plan_, group, first + part - 1); ++shard) {
    const int64_t id = backward_executions_[execution.group][shard];
    if (id >= 0) AddLastCommits(graph_.execution(id), nodes);
  }
  return nodes;
}

void StepBuilder::AddUpdate(int block, NodeIds& after) {
  if (!work_->update[block]) return;
  const NodeId update = AddHost(NodeKind::kUpdate, block, {last_checkpoint_, initialized_});
  for (NodeId dep : after) graph_.AddDep(update, dep);
  after.clear();  // the lane is a FIFO: waiting once is enough
  last_update_[block] = update;
  end_of_updates_[static_cast<size_t>(step_ & 3)] = {step_, update};
}

void StepBuilder::AddHostTasks(const recovery::StepWork& work) {
  if (work.scalars) {
    const NodeId scalars = AddHost(NodeKind::kStepScalars, 0, {});
    for (NodeId loss : losses_) graph_.AddDep(scalars, loss);
  }
  NodeIds after;  // last copies of the groups seen, not yet waited for
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    for (int64_t execution : backward_executions_[g]) {
      if (execution >= 0) AddLastCommits(graph_.execution(execution), after);
    }
    for (int block : model::BlocksCompletedBy(model_, plan_.backward_groups[g].layers)) {
      if (eager_) {
        AddUpdate(block, after);
      } else if (plan_.clip && work.scalars) {
        const NodeId norm = AddHost(NodeKind::kNorm, block, {});
        for (NodeId dep : after) graph_.AddDep(norm, dep);
        after.clear();
      }
    }
  }
  if (eager_) return;
  if (plan_.clip && work.scalars) AddHost(NodeKind::kClip, 0, {});
  for (int block = 0; block < static_cast<int>(model_.blocks.size()); ++block) {
    AddUpdate(block, after);
  }
}

}  // namespace harmony::dispatch
