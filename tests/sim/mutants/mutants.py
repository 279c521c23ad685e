#!/usr/bin/env python3
"""Mistakes that a dispatcher, a recovery or a job runner could have, each as one change to a source.

Every mutant is a program of its own: the changed copy of the source, and all else as it is. What the
simulated schedules and the check of orders find in it shows what they would find in us; a mutant that
none of them finds is a hole in the tests. The product itself knows nothing of this.

A mutant that changes nothing that can happen has no place here: that a runner ignores progress and
answers of an old generation, say, is a second lock, for streams keep order and all that was sent of the
old generation has arrived before the new one begins.

    mutants.py list                  a line for each: name, source, first seed
    mutants.py write NAME TREE FILE  the changed source; fails when the text is not there once
"""
import sys
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    source: str
    was: str
    becomes: str
    first_seed: int = 1  # of those to try: shortly before one that finds it, where that is rare


BUILDER = "coordinator/dispatch/graph/step_builder.cc"
GRADIENTS = "coordinator/dispatch/graph/gradient_nodes.cc"
MEMORY = "coordinator/dispatch/memory/"
FRONTIER = "coordinator/recovery/frontier.cc"
RUNNER = "coordinator/runner/job_runner.cc"
LANE_QUEUE = "common/command/lane_queue.cc"

MUTANTS = [
    # Dependencies that are forgotten.
    Mutant("update_without_gradients", GRADIENTS,
           "if (execution.sum.given_to < 0) nodes.push_back(execution.last_sum);",
           ""),
    Mutant("update_before_boundary_gradients_are_committed", GRADIENTS,
           "if (execution.last_out != kNoNode) nodes.push_back(execution.last_out);",
           "", first_seed=600),
    Mutant("bank_waits_for_one_shard_only", BUILDER,
           "const int64_t before = BackwardOf(group, microbatch);",
           "const int64_t before = backward_executions_[group][0];", first_seed=8_900),
    Mutant("part_begins_over_the_one_before", BUILDER,
           "graph_.node(compute).gradient_copies = execution.last_sum;",
           ""),
    Mutant("gradient_written_before_its_copy", "coordinator/dispatch/issue/command_writer.cc",
           "waits.push_back({static_cast<uint32_t>(copy.lane), copy.value});",
           "waits.push_back({static_cast<uint32_t>(copy.lane), copy.value - 1});"),
    Mutant("sum_of_another_device_not_awaited", BUILDER,
           "graph_.node(compute).gradient_copies = SumsTaken(execution);",
           "SumsTaken(execution);"),
    Mutant("only_the_last_of_several_sums_awaited", GRADIENTS,
           "graph_.AddDep(CopyOf(last, i), CopyOf(before, i));",
           ""),
    Mutant("sum_sent_into_memory_in_use", "coordinator/dispatch/memory/memory_admission.cc",
           "use(MemoryOf(taker), TakenItem(node, execution, taker));",
           "static_cast<void>(taker);"),
    Mutant("sums_that_wait_over_memory_in_use", "coordinator/dispatch/memory/memory_admission.cc",
           "if (node.position == execution.waiting_from) use(memory, execution.waiting_sums);",
           ""),
    Mutant("memory_used_before_it_is_given", MEMORY + "memory_admission.cc",
           "given = given && memory.held(item);",
           "given = given && item >= 0 && memory.items() > 0;"),
    Mutant("sums_given_back_while_added_up", "coordinator/dispatch/memory/memory_admission.cc",
           "given = Release(execution, execution.waiting_sums, UsersOf(node)) || given;",
           "given = Release(execution, execution.waiting_sums, Users()) || given;"),
    Mutant("only_the_nearest_sum_taken", "coordinator/dispatch/graph/group_executions.cc",
           "execution.sum = plan::SumOf(plan, planned, own);",
           "execution.sum = plan::SumOf(plan, planned, own), execution.sum.taken &= 1;"),
    Mutant("update_during_checkpoint", GRADIENTS,
           "AddHost(NodeKind::kUpdate, block, {last_checkpoint_, initialized_});",
           "AddHost(NodeKind::kUpdate, block, {initialized_});"),
    Mutant("weights_before_their_update", BUILDER,
           "Add(NodeKind::kLoadWeights, execution_id, position, block, {last_update_[block]});",
           "Add(NodeKind::kLoadWeights, execution_id, position, block, {});"),
    Mutant("weights_passed_on_before_they_are_there", BUILDER,
           "{source.loads[there - source.blocks.begin()]});",
           "{});"),
    Mutant("scalars_without_losses", GRADIENTS,
           "for (NodeId loss : losses_) graph_.AddDep(scalars, loss);",
           "static_cast<void>(scalars);"),
    # Fences that are missing: what is read, or may be read again, is overwritten.
    Mutant("batch_overwritten", BUILDER,
           "AddHost(NodeKind::kLoadBatch, 0, {fused_started_});",
           "AddHost(NodeKind::kLoadBatch, 0, {});"),
    Mutant("input_slot_overwritten", BUILDER,
           "deps.push_back(Add(kind, execution_id, position, index, {from, slot_free}));",
           "deps.push_back(Add(kind, execution_id, position, index, {from}));"),
    Mutant("output_slot_overwritten", BUILDER,
           "deps.insert(deps.end(), before.sends.begin(), before.sends.end());",
           ""),
    # This one was ours: a late copy into a bank that was given to another group.
    Mutant("bank_overwritten", BUILDER,
           "for (const int group : {maker, maker - 1}) {",
           "for (const int group : {maker - 1}) {"),
    Mutant("memory_without_fence", MEMORY + "region_ledger.cc",
           "users.Merge(piece.users);",
           ""),
    Mutant("weights_overwritten_while_passed_on", MEMORY + "memory_admission.cc",
           "AddUser(execution.weight_users, node);\n      --execution.passes_left;",
           "--execution.passes_left;"),
    # Memory and records that are given back early, or not at all.
    Mutant("outputs_released_early", MEMORY + "memory_admission.cc",
           "if (execution.compute_left > 0 || execution.outs_left != 0) return false;",
           "if (execution.compute_left > 0 || execution.outs_left < 0) return false;"),
    Mutant("ring_released_early", MEMORY + "gradient_slots.cc",
           "ring_.Release(pieces_[g].slots[static_cast<size_t>(slot)], UsersOf(node));",
           "ring_.Release(pieces_[g].slots[static_cast<size_t>(slot)], Users());"),
    Mutant("record_not_retired", MEMORY + "arena_records.cc",
           "if (!absl::c_linear_search(retire, claim.record)) retire.push_back(claim.record);",
           ""),
    Mutant("record_freed_in_no_order", MEMORY + "arena_records.cc",
           "if (freed.semaphore != lane) after.Add(freed.semaphore, freed.value, Nanos());",
           "static_cast<void>(freed);", first_seed=700),
    Mutant("committed_gradients_overwritten", MEMORY + "gradient_slots.cc",
           "ring_.Pin(at, at + sizes[slot]);",
           "static_cast<void>(at);"),
    # What is derived after a fault.
    Mutant("half_an_update_counts", FRONTIER,
           "updating ? version - 1 : version;",
           "version;"),
    Mutant("lost_stash_counts", FRONTIER,
           "const bool missing = kept[b] || !Stashed(b, task);",
           "const bool missing = !kept[b] && !Stashed(b, task);"),
    Mutant("lost_output_gradient_counts", FRONTIER,
           "      more |= RunPartWith(group + 1, m);",
           "      more = false;"),
    Mutant("output_gradients_of_one_shard_only", FRONTIER,
           "      more |= RunPartWith(group + 1, m);",
           "      RunPartWith(group + 1, shard.first);", first_seed=900),
    Mutant("one_part_counts_as_all", FRONTIER,
           "return HoldsAll(kind, index, shard.first / part, std::max(shard.count / part, 1));",
           "return HoldsAll(kind, index, shard.first / part, 1);"),
    # Generations.
    Mutant("records_read_while_others_write", RUNNER,
           "return m.attached && m.quiet;",
           "return m.attached;"),
    Mutant("quiet_lane_goes_on", LANE_QUEUE,
           "while (queue_.size() > (running_ ? 1U : 0U)) queue_.pop_back();",
           ""),
    Mutant("failed_lane_goes_on", LANE_QUEUE,
           "if (generation != generation_ || !accepting_) {",
           "if (generation != generation_) {", first_seed=15_600),
    Mutant("quiet_lane_signals", LANE_QUEUE,
           "return accepting_ ? value : 0;",
           "return value;"),
]


def main(arguments):
    if arguments == ["list"]:
        for mutant in MUTANTS:
            print(mutant.name, mutant.source, mutant.first_seed)
        return 0
    if len(arguments) != 4 or arguments[0] != "write":
        print(__doc__, file=sys.stderr)
        return 2
    _, name, tree, out = arguments
    mutant = next(m for m in MUTANTS if m.name == name)
    text = (Path(tree) / mutant.source).read_text()
    if text.count(mutant.was) != 1:
        print(f"mutant {name}: {mutant.source} has this text {text.count(mutant.was)} times instead of once; "
              f"tests/sim/mutants/mutants.py has to follow the source:\n{mutant.was}", file=sys.stderr)
        return 1
    Path(out).write_text(text.replace(mutant.was, mutant.becomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
