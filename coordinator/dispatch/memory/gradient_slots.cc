#include "coordinator/dispatch/memory/gradient_slots.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace harmony::dispatch {

GradientSlots::GradientSlots(const model::ModelSpec& model, const plan::Plan& plan,
                             const plan::ArenaLayout& layout, const WorkGraph& graph)
    : model_(model),
      plan_(plan),
      layout_(layout),
      graph_(graph),
      ring_(layout.ring_begin(), layout.ring_bytes()),
      pieces_(plan.backward_groups.size()) {
  for (const plan::LayerGroup& group : plan.backward_groups) {
    references_.push_back(plan::ReferencesOf(model, group.layers));
    absl::c_reverse(references_.back());
    std::vector<Bytes>& sizes = sizes_.emplace_back();
    for (const int reference : references_.back()) {
      sizes.push_back(RingBytes(reference) * group.gradient_parts);
    }
  }
}

void GradientSlots::Pin(const recovery::Frontier& frontier, const recovery::StepWork& work) {
  pinned_step_ = work.step;
  if (layout_.ring_bytes().count() == 0 || !frontier.initialized()) return;
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    const std::optional<Bytes> begin = PieceInUse(frontier, g, work.step);
    if (!begin) continue;
    const std::vector<Bytes>& sizes = sizes_[static_cast<size_t>(g)];
    Piece& piece = pieces_[g];
    piece.slots.resize(sizes.size());
    Bytes at = *begin;
    for (size_t slot = 0; slot < sizes.size(); at += sizes[slot++]) {
      piece.slots[slot] = at;
      const int block = model_.references[references_[g][slot]].block;
      if (sizes[slot].count() == 0 || !work.update[block]) continue;
      ring_.Pin(at, at + sizes[slot]);
      ++piece.updates_left;
    }
  }
}

std::optional<Bytes> GradientSlots::PieceInUse(const recovery::Frontier& frontier,
                                               int backward_group, int64_t step) const {
  const std::vector<Bytes>& sizes = sizes_[static_cast<size_t>(backward_group)];
  Bytes before;
  for (size_t slot = 0; slot < sizes.size(); before += sizes[slot++]) {
    const int reference = references_[backward_group][slot];
    if (layout_.ReferenceHasOwnGradientSlot(reference)) continue;
    for (int part = 0; part < plan_.backward_groups[backward_group].gradient_parts; ++part) {
      const command::ObjectKey key{command::ObjectKind::kGradient, reference, part};
      if (!frontier.Holds(key, step + 1)) continue;
      return frontier.OffsetOf(key) - RingBytes(reference) * part - before;
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
    const bool pinned = work.step == pinned_step_ && pieces_[g].updates_left > 0;
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
    count += int{!model_.blocks[block].tied() && updates[block]};
  }
  return count;
}

Bytes GradientSlots::RingBytes(int reference) const {
  if (layout_.ReferenceHasOwnGradientSlot(reference)) return Bytes(0);
  return model_.blocks[model_.references[reference].block].gradient_bytes.AlignUp(kSlotAlignment);
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
  const std::vector<Bytes>& slots = pieces_[graph_.execution(node.execution).group].slots;
  return slots[slots.size() - 1 - static_cast<size_t>(node.position)] +
         RingBytes(node.index) * node.part;
}

const Users* GradientSlots::WaitsOf(const Node& node) const {
  if (layout_.ReferenceHasOwnGradientSlot(node.index)) return nullptr;
  return &pieces_[graph_.execution(node.execution).group].waits;
}

bool GradientSlots::IsOfLastPart(const Node& node, const GroupExecution& execution) const {
  const bool losses = node.kind == NodeKind::kLossOut;
  const int part = losses ? plan_.loss_microbatches()
                          : plan_.part_microbatches(plan_.backward_groups[execution.group]);
  return execution.microbatches.back() / part == node.part;
}

bool GradientSlots::IsDue(const PieceRequest& request) const {
  return std::any_of(request.executions.begin(), request.executions.end(), [&](int64_t id) {
    const GroupExecution& execution = graph_.execution(id);
    const int issued = static_cast<int>(execution.microbatches.size()) - execution.compute_left;
    return execution.sum.given_to < 0 && issued >= execution.sum.microbatches;
  });
}

bool GradientSlots::Grant() {
  bool any = false;
  while (!requests_.empty()) {
    const PieceRequest& request = requests_.front();
    Piece& piece = pieces_[request.group];
    if (!IsDue(request) || piece.updates_left > 0) break;
    std::optional<GradientRing::Piece> taken =
        ring_.Take(sizes_[static_cast<size_t>(request.group)]);
    if (!taken) break;
    piece.slots = std::move(taken->slots);
    piece.waits = std::move(taken->waits);
    for (const int reference : references_[request.group]) {
      piece.updates_left += int{!layout_.ReferenceHasOwnGradientSlot(reference)};
    }
    requests_.pop_front();
    any = true;
  }
  return any;
}

bool GradientSlots::AfterUpdate(const Node& node) {
  const model::ParamBlock& block = model_.blocks[node.index];
  if (layout_.ring_bytes().count() == 0 || block.tied()) return false;
  const int reference = block.references.front(), layer = model_.references[reference].layer;
  for (size_t g = 0; g < pieces_.size(); ++g) {
    if (!plan_.backward_groups[g].layers.contains(layer)) continue;
    const auto slot = absl::c_find(references_[g], reference) - references_[g].begin();
    ring_.Release(pieces_[g].slots[static_cast<size_t>(slot)], UsersOf(node));
    --pieces_[g].updates_left;
    return Grant();
  }
  return false;
}

}  // namespace harmony::dispatch
