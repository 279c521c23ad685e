#include "coordinator/dispatch/memory/gradient_slots.h"

#include <algorithm>
#include <utility>

namespace harmony::dispatch {

GradientSlots::GradientSlots(const model::ModelSpec& model, const plan::Plan& plan,
                             const plan::ArenaLayout& layout, const WorkGraph& graph)
    : model_(model),
      plan_(plan),
      layout_(layout),
      graph_(graph),
      ring_(layout.ring_begin(), layout.ring_bytes()),
      pieces_(plan.backward_groups.size()) {}

void GradientSlots::Pin(const recovery::Frontier& frontier, const recovery::StepWork& work) {
  pinned_step_ = work.step;
  if (layout_.ring_bytes().count() == 0 || !frontier.initialized()) return;
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    const int updates = BlocksInRing(g, work.update);
    const std::optional<Bytes> begin = PieceInUse(frontier, g, work.step);
    if (updates == 0 || !begin) continue;
    const Bytes bytes = RingBytes(plan::ReferencesOf(model_, plan_.backward_groups[g].layers));
    ring_.Pin(*begin, *begin + bytes * plan_.backward_groups[g].gradient_parts);
    pieces_[g].held = true;
    pieces_[g].begin = *begin;
    pieces_[g].updates_left = updates;
  }
}

std::optional<Bytes> GradientSlots::PieceInUse(const recovery::Frontier& frontier,
                                               int backward_group, int64_t step) const {
  const plan::LayerGroup& group = plan_.backward_groups[backward_group];
  const std::vector<int> references = plan::ReferencesOf(model_, group.layers);
  for (size_t i = 0; i < references.size(); ++i) {
    if (layout_.ReferenceHasOwnGradientSlot(references[i])) continue;
    for (int part = 0; part < group.gradient_parts; ++part) {
      const command::ObjectKey key{command::ObjectKind::kGradient, references[i], part};
      if (!frontier.Holds(key, step + 1)) continue;
      return frontier.OffsetOf(key) - RingBytes(references) * part -
             RingBytes(absl::MakeConstSpan(references).first(i));
    }
  }
  return std::nullopt;
}

void GradientSlots::Request(const recovery::StepWork& work,
                            const std::vector<std::vector<int64_t>>& executions) {
  if (layout_.ring_bytes().count() == 0) return;
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    PieceRequest request{work.step, g, {}};
    for (int64_t execution : executions[g]) {
      if (execution >= 0) request.executions.push_back(execution);
    }
    const bool pinned = work.step == pinned_step_ && pieces_[g].held;
    if (request.executions.empty() || pinned || BlocksInRing(g, work.update) == 0) continue;
    requests_.push_back(std::move(request));
  }
}

void GradientSlots::CancelFrom(int64_t step) {
  requests_.erase(
      std::remove_if(requests_.begin(), requests_.end(),
                     [step](const PieceRequest& request) { return request.step >= step; }),
      requests_.end());
}

int GradientSlots::BlocksInRing(int backward_group, const std::vector<bool>& updates) const {
  int count = 0;
  for (int block : plan::BlocksOf(model_, plan_.backward_groups[backward_group].layers, false)) {
    count += !model_.blocks[block].tied() && updates[block] ? 1 : 0;
  }
  return count;
}

Bytes GradientSlots::RingBytes(absl::Span<const int> references) const {
  Bytes sum;
  for (int reference : references) {
    if (layout_.ReferenceHasOwnGradientSlot(reference)) continue;
    sum += model_.blocks[model_.references[reference].block].gradient_bytes.AlignUp(kSlotAlignment);
  }
  return sum;
}

bool GradientSlots::IsGiven(const Node& node) const {
  if (layout_.ReferenceHasOwnGradientSlot(node.index)) return true;
  const int group = graph_.execution(node.execution).group;
  return std::none_of(requests_.begin(), requests_.end(), [&](const PieceRequest& request) {
    return request.step == node.step && request.group == group;
  });
}

Bytes GradientSlots::SlotOf(const Node& node) const {
  if (layout_.ReferenceHasOwnGradientSlot(node.index)) {
    return layout_.Gradient(node.index, node.part);
  }
  const GroupExecution& execution = graph_.execution(node.execution);
  const absl::Span<const int> references = execution.references;
  return pieces_[execution.group].begin + RingBytes(references) * node.part +
         RingBytes(references.first(static_cast<size_t>(node.position)));
}

const Users* GradientSlots::WaitsOf(const Node& node) const {
  if (layout_.ReferenceHasOwnGradientSlot(node.index)) return nullptr;
  return &pieces_[graph_.execution(node.execution).group].waits;
}

bool GradientSlots::IsOfLastPart(const Node& node, const GroupExecution& execution) const {
  return execution.microbatches.back() / execution.part_microbatches == node.part;
}

bool GradientSlots::IsDue(const PieceRequest& request) const {
  return std::any_of(request.executions.begin(), request.executions.end(), [&](int64_t id) {
    const GroupExecution& execution = graph_.execution(id);
    const int issued = static_cast<int>(execution.microbatches.size()) - execution.compute_left;
    return issued >= execution.part_microbatches;
  });
}

bool GradientSlots::Grant() {
  bool any = false;
  while (!requests_.empty()) {
    const PieceRequest& request = requests_.front();
    Piece& piece = pieces_[request.group];
    if (!IsDue(request) || piece.held) break;
    int blocks = 0;
    const std::vector<int>& references = graph_.execution(request.executions.front()).references;
    for (int reference : references)
      blocks += layout_.ReferenceHasOwnGradientSlot(reference) ? 0 : 1;
    std::optional<GradientRing::Piece> taken =
        ring_.Take(RingBytes(references) * plan_.backward_groups[request.group].gradient_parts);
    if (!taken) break;
    piece.held = true;
    piece.begin = taken->begin;
    piece.waits = std::move(taken->waits);
    piece.updates_left = blocks;
    requests_.pop_front();
    any = true;
  }
  return any;
}

bool GradientSlots::AfterUpdate(const Node& node) {
  if (layout_.ring_bytes().count() == 0 || model_.blocks[node.index].tied()) return false;
  const int layer = model_.references[model_.blocks[node.index].references.front()].layer;
  for (size_t g = 0; g < pieces_.size(); ++g) {
    if (!plan_.backward_groups[g].layers.contains(layer)) continue;
    Piece& piece = pieces_[g];
    if (--piece.updates_left > 0) return false;
    ring_.Release(piece.begin, UsersOf(node));
    piece.held = false;
    return Grant();
  }
  return false;
}

}  // namespace harmony::dispatch
