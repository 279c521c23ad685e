#include "coordinator/core/visits.h"

#include <algorithm>
#include <numeric>

#include "common/model/model_sizes.h"

namespace harmony {

Visit PlannedVisit(const ModelSpec& model, const Plan& plan, VisitKind kind, int group, int share,
                   int last) {
  const bool forward = kind == VisitKind::kForward;
  const LayerGroup& planned = forward ? plan.forward_groups[group] : plan.backward_groups[group];
  const LayerRange layers{planned.layers.first, std::min(planned.layers.last, last)};
  Visit visit;
  visit.kind = kind;
  visit.group = group;
  visit.share = share;
  visit.device = DeviceOf(plan, planned, share);
  visit.layers = layers;
  visit.span = forward ? plan.forward_span : 1;
  visit.microbatches.resize(plan.share_microbatches() / visit.span);
  std::iota(visit.microbatches.begin(), visit.microbatches.end(),
            share * static_cast<int>(visit.microbatches.size()));
  visit.slots = std::min(plan.stream_slots, static_cast<int>(visit.microbatches.size()));
  visit.blocks = BlocksOf(model, layers, kind == VisitKind::kBackward);
  visit.keeper = forward ? KeeperOf(plan, planned) : planned.keep_weights ? group : -1;
  visit.own_blocks = static_cast<int>(visit.blocks.size());
  if (visit.keeper >= 0) {  // what only the forward needs is not kept
    const std::vector<int> kept = BlocksOf(model, layers, true);
    const auto own = std::stable_partition(visit.blocks.begin(), visit.blocks.end(), [&](int b) {
      return std::find(kept.begin(), kept.end(), b) == kept.end();
    });
    visit.own_blocks = static_cast<int>(own - visit.blocks.begin());
  }
  visit.activations = forward                    ? ActivationKeeperOf(plan, planned)
                      : planned.keep_activations ? group
                                                 : -1;
  if (layers != planned.layers) visit.activations = -1;  // only a stash is wanted
  visit.uses = UsesOf(model, layers);
  visit.inputs = InputsOf(model, layers);
  visit.has_loss = kind == VisitKind::kFused;
  visit.has_input = kind == VisitKind::kBackward ? StashBoundary(planned) > 0 : layers.first > 0;
  visit.has_output_gradient = kind == VisitKind::kBackward;
  visit.has_input_gradient = !forward && layers.first > 0;
  const int input = kind == VisitKind::kBackward ? StashBoundary(planned) : layers.first;
  bool last_kept = false;
  auto add_output = [&](int boundary, bool kept) {
    visit.outputs.push_back(boundary);
    visit.output_kept.push_back(kept);
  };
  for (const StashSpec& stash : StashesOf(plan, input, layers.last + 1)) {
    const bool kept_here =
        stash.kept && DeviceOf(plan, plan.backward_groups[stash.group], share) == visit.device;
    if (stash.boundary == input && kept_here) visit.kept_input = input;
    if (!forward || stash.boundary <= layers.first) continue;
    if (stash.boundary <= layers.last) add_output(stash.boundary, kept_here);
    if (stash.boundary == layers.last + 1) last_kept = kept_here;
  }
  if (forward) add_output(layers.last + 1, last_kept);
  return visit;
}

TaskKind TaskOf(VisitKind kind) {
  return kind == VisitKind::kForward    ? TaskKind::kForward
         : kind == VisitKind::kBackward ? TaskKind::kBackward
                                        : TaskKind::kForwardBackward;
}

std::vector<Bytes> LayOutItems(const ModelSpec& model, const Plan& plan, Visit& visit) {
  Bytes in, out;
  const auto take = [](Bytes& end, Bytes size) {
    const Bytes at = end;
    end = (end + size).AlignUp(kSlotAlignment);
    return at;
  };
  const auto place = [&](Bytes size) { return take(in, size); };
  const int64_t samples = plan.microbatch_size * visit.span;
  const auto hidden = [&](int boundary) { return BoundaryBytes(model, boundary, samples); };
  const auto gradient = [&](int boundary) {
    return BoundaryGradientBytes(model, boundary, samples);
  };
  visit.inputs_at.clear();
  for (int input : visit.inputs) {
    visit.inputs_at.push_back(place(InputBytes(model, input, samples)));
  }
  if (visit.has_input && visit.kept_input < 0) {
    // That of a backward is its stash.
    const int least = visit.kind == VisitKind::kBackward ? 1 : 0;
    visit.input_at = place(hidden(std::max(visit.layers.first, least)));
  }
  if (visit.has_output_gradient) visit.output_gradient_at = place(gradient(visit.layers.last + 1));
  visit.in_stride = in;
  if (visit.has_input_gradient) take(out, gradient(visit.layers.first));
  visit.output_at.resize(visit.outputs.size());
  for (size_t i = 0; i < visit.outputs.size(); ++i) {
    if (!visit.output_kept[i]) visit.output_at[i] = take(out, hidden(visit.outputs[i]));
  }
  visit.out_stride = out;

  std::vector<Bytes> sizes;
  for (int i = 0; i < visit.own_blocks; ++i) {
    sizes.push_back(model.blocks[visit.blocks[i]].weight_bytes);
  }
  if (visit.kind != VisitKind::kForward) {
    for (int use : visit.uses) sizes.push_back(model.blocks[model.uses[use].block].gradient_bytes);
  }
  if (visit.has_loss) sizes.push_back(Bytes(sizeof(LossSlot)) * plan.share_microbatches());
  sizes.push_back(visit.in_stride * visit.slots);
  sizes.push_back(visit.out_stride * visit.slots);
  return sizes;
}

namespace {

WorkspaceOf WorkspaceTaskOf(const Visit& visit) {
  const bool keeps = visit.activations >= 0;
  if (visit.kind == VisitKind::kForward) {
    return keeps ? WorkspaceOf::kKeepingForward : WorkspaceOf::kForward;
  }
  return keeps ? WorkspaceOf::kKeptBackward : WorkspaceOf::kBackward;
}

}  // namespace

Bytes WorkspaceBoundOf(const ModelSpec& model, const Plan& plan, const Visit& visit) {
  return WorkspaceBound(model, WorkspaceTaskOf(visit), visit.layers,
                        plan.microbatch_size * visit.span);
}

Bytes WorkspacePeakOf(const ModelSpec& model, const Plan& plan, const Visit& visit, int threads) {
  return WorkspacePeak(model, WorkspaceTaskOf(visit), visit.layers,
                       plan.microbatch_size * visit.span, threads);
}

Bytes TotalOf(const std::vector<Bytes>& items) {
  Bytes total;
  for (Bytes size : items) total += size.AlignUp(kSlotAlignment);
  return total;
}

}  // namespace harmony
