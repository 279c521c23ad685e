// Issuing without commands: what the modelled times alone say.

#include <algorithm>

#include "common/base/status.h"
#include "coordinator/core/generation.h"

namespace harmony {

absl::Status Generation::Rehearse(Rehearsal& rehearsal) {
  last_durations_.resize(lanes_.size());
  rehearsal.step_ends.resize(static_cast<size_t>(job_.end_step));
  rehearsal.busy.resize(lanes_.size());
  const int host = lane_table_.IndexOf({LaneKind::kHostCompute, 0});
  for (;;) {
    HARMONY_ASSIGN_OR_RETURN(const int index, NextLane());
    if (index < 0) return absl::OkStatus();
    LaneState& lane = lanes_[index];
    const Node& node = graph_.node(graph_.lane(index).front());
    Users users;
    const Nanos duration = DurationOf(index, users);
    if (node.step + 1 == job_.end_step && node.kind != NodeKind::kInitialize &&
        node.kind != NodeKind::kCheckpoint) {
      rehearsal.busy[links_[index]] += duration;
    }
    Issued(index, std::max(lane.start, users.finish), duration);
    ++rehearsal.commands;
    lane.completed = lane.issued;
    if (index != host) continue;
    if (node.kind == NodeKind::kUpdate) {
      Nanos& end = rehearsal.step_ends[static_cast<size_t>(node.step)];
      end = std::max(end, node.finish);
    }
    FinishSteps();
  }
}

// Of the head: most are like the one before. What it waits for besides what makes it ready is added
// to `users`: copies that free records in the arena's shared places.
Nanos Generation::DurationOf(int index, Users& users) {
  const Node& node = graph_.node(graph_.lane(index).front());
  int edge = 0;
  if (node.kind == NodeKind::kCompute) {
    const Visit& visit = graph_.visit(node.visit);
    const int m = visit.microbatches[node.position] * visit.span;
    edge = (m % plan_.replica_microbatches() == 0 ? 1 : 0) +
           ((m + visit.span) % plan_.replica_microbatches() == 0 ? 2 : 0);
  }
  // An egress's index is where its tensor goes, no part of its size.
  const int what = node.kind == NodeKind::kEgress ? 0 : node.index;
  LastDuration& last = last_durations_[index][static_cast<size_t>(node.kind)];
  const bool known =
      node.visit >= 0 && last.visit == node.visit && last.index == what && last.edge == edge;
  const bool claims = node.kind == NodeKind::kBoundaryOut || node.kind == NodeKind::kGradientOut;
  if (known && !claims) return last.duration;
  Command command;
  WriteHead(index, users, command);
  if (known) return last.duration;
  last = {node.visit, what, edge, job_.costs.Duration(command)};
  return last.duration;
}

}  // namespace harmony
