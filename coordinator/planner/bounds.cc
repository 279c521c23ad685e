#include "coordinator/planner/bounds.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "coordinator/core/kept_layout.h"

namespace harmony {
namespace {

// Long before the step.
constexpr Nanos kEarlier(std::numeric_limits<int64_t>::min() / 4);

TaskKind TaskOf(VisitKind kind) {
  return kind == VisitKind::kForward    ? TaskKind::kForward
         : kind == VisitKind::kBackward ? TaskKind::kBackward
                                        : TaskKind::kForwardBackward;
}

// The schedule of one step. Time 0: the update of block 0 of the step before has completed.
class RelaxedStep {
 public:
  RelaxedStep(const ModelSpec& model, const Plan& plan, const StepVisits& step, TaskCosts& costs)
      : model_(model),
        plan_(plan),
        step_(step),
        costs_(costs),
        eager_(plan.update == UpdateMode::kEager),
        microbatches_(plan.num_microbatches),
        devices_(plan.devices.size()),
        kept_(model, plan),
        links_(LinksOfLanes(plan)),
        stash_(model.num_layers() + 1, kNotStashed),
        stash_made_(model.num_layers() + 1) {
    for (const StashSpec& stash : StashesOf(plan)) {
      stash_[stash.boundary] =
          stash.kept ? DeviceOf(plan, plan.backward_groups[stash.group], 0) : kOnHost;
    }
  }

  PlanBound Run() {
    FindWeights();
    done_.resize(step_.visits.size());
    for (size_t v = 0; v < step_.visits.size(); ++v) RunVisit(v);
    const Nanos chain = RunHost();
    Nanos lane = host_busy_, copies;
    std::vector<Nanos> links(links_.size());
    const LaneTable table(static_cast<int>(devices_.size()));
    for (int d = 0; d < table.num_devices(); ++d) {
      const Device& device = devices_[d];
      copies += device.bulk.busy + device.stream.busy + device.d2h.busy;
      lane = std::max({lane, device.compute.busy, device.p2p.busy});
      links[links_[table.IndexOf({LaneKind::kH2DBulk, d})]] +=
          device.bulk.busy + device.stream.busy;
      links[links_[table.IndexOf({LaneKind::kD2H, d})]] += device.d2h.busy;
    }
    for (Nanos busy : links) lane = std::max(lane, busy);
    return {std::max(chain, lane), chain, lane, copies};
  }

 private:
  static constexpr int kNotStashed = -2, kOnHost = -1;  // else the device that keeps it

  struct Lane {
    Nanos free = kEarlier, busy;
    Nanos Run(Nanos from, Nanos duration) {
      free = std::max(free, from) + duration;
      busy += duration;
      return free;
    }
  };
  struct Device {
    Lane compute, bulk, stream, d2h, p2p;
    int last = -1, before = -1;  // visits
  };
  // When what a visit made is there.
  struct Done {
    std::vector<Nanos> compute;       // by task
    std::vector<Nanos> out;           // the last certain copy of the task's outputs
    std::vector<Nanos> gradient_out;  // of the input gradient, to the arena; with eager updates
    bool certain_out = false;
    void Out(int task, Nanos at) {
      out[task] = std::max(out[task], at);
      certain_out = true;
    }
    Nanos gradients = kEarlier;           // all of them
    Bytes total, to_outputs, to_streams;  // stacked sizes: all, without `out`, weights + gradients
  };

  // Blocks of layer 0's forward are updated in this step's beginning.
  void FindWeights() {
    available_.assign(model_.blocks.size(), kEarlier);
    available_[0] = Nanos(0);
    if (eager_) return;  // block 0 is updated last
    Nanos sum;
    for (size_t block = 1; block < available_.size(); ++block) {
      sum += costs_.Update(static_cast<int>(block));
      available_[block] = sum;
    }
    host_free_ = sum;
  }

  // Until when something of the visits before, on the same device, certainly lies in [begin, end)
  // of what this visit stacks. The visit before last began at the same end of the region, the last
  // one at the other end, its outputs nearest to us.
  Nanos PlaceFree(const Device& device, Bytes resident, Bytes begin, Bytes end) const {
    if (begin == end) return kEarlier;
    Nanos at = kEarlier;
    if (device.before >= 0 && begin < done_[device.before].total) {
      at = done_[device.before].compute.back();
    }
    if (device.last < 0 || end + done_[device.last].total <= resident) return at;
    const Done& last = done_[device.last];
    at = std::max(at, last.compute.back());
    if (last.certain_out && begin + last.to_outputs < resident) at = std::max(at, last.out.back());
    const bool meets_gradients =
        end + last.to_streams > resident && begin + last.to_streams <= resident;
    return meets_gradients ? std::max(at, last.gradients) : at;
  }

  void RunVisit(size_t v) {
    const Visit& visit = step_.visits[v];
    const std::vector<Bytes>& items = step_.items[v];
    Device& device = devices_[visit.device];
    const Bytes region(plan_.devices[visit.device].resident.count() / kSlotAlignment *
                       kSlotAlignment);
    const Bytes resident = region - kept_.bytes(visit.device);
    Done& done = done_[v];
    Bytes stacked;
    Nanos loaded = kEarlier;
    size_t item = 0;
    for (int i = 0; i < static_cast<int>(visit.blocks.size()); ++i) {
      const int block = visit.blocks[i];
      Nanos place = kEarlier;
      if (i < visit.own_blocks) {
        stacked += items[item++].AlignUp(kSlotAlignment);
        place = PlaceFree(device, resident, Bytes(0), stacked);
      } else if (!kept_loads_.insert({visit.keeper, block}).second) {
        continue;  // the forward has loaded it
      }
      const Nanos from = std::max(available_[block], place);
      loaded = device.bulk.Run(from, costs_.Load(block, visit.device));
    }
    const size_t gradients = visit.kind == VisitKind::kForward ? 0 : visit.uses.size();
    for (size_t i = 0; i < gradients; ++i) stacked += items[item++].AlignUp(kSlotAlignment);
    done.to_streams = stacked;
    if (visit.has_labels) stacked += items[item++].AlignUp(kSlotAlignment);
    done.to_outputs = stacked + items[item].AlignUp(kSlotAlignment);
    const Nanos in_free = PlaceFree(device, resident, stacked, done.to_outputs);
    done.total = done.to_outputs + items[item + 1].AlignUp(kSlotAlignment);
    // The first task needs all of it.
    const Nanos place = PlaceFree(device, resident, Bytes(0), done.total);
    Stream(v, std::max(loaded, place), in_free);
    RunTail(visit, done);
    device.before = device.last;
    device.last = static_cast<int>(v);
  }

  // All tasks of a visit.
  void Stream(size_t v, Nanos ready, Nanos in_free) {
    const Visit& visit = step_.visits[v];
    const int span = visit.span, count = microbatches_ / span;
    Device& device = devices_[visit.device];
    Done& done = done_[v];
    done.compute.resize(count);
    done.out.assign(count, kEarlier);
    done.gradient_out.assign(count, kEarlier);
    const auto duration = [&](bool first, bool last) {
      return costs_.Compute(TaskOf(visit.kind), visit.layers, visit.device, first, last, span,
                            visit.activations >= 0);
    };
    const Nanos middle = duration(false, false);
    const bool chained = visit.kind == VisitKind::kBackward
                             ? visit.has_output_gradient
                             : visit.has_input && visit.kept_input < 0;
    const Nanos gradient_out = costs_.HiddenOut(visit.layers.first, visit.device, 1);
    const Nanos tokens_in = costs_.TokensIn(visit.device, span);
    for (int task = 0; task < count; ++task) {
      const int m = task * span;
      const bool fresh = task < visit.slots;
      const Nanos slot = fresh ? in_free : done.compute[task - visit.slots];
      Nanos from = task == 0 ? ready : kEarlier;
      const int tokens = (visit.has_tokens ? 1 : 0) + (visit.has_labels ? 1 : 0);
      for (int i = 0; i < tokens; ++i) from = std::max(from, device.stream.Run(slot, tokens_in));
      if (visit.kept_input >= 0) {
        from = std::max(from, StashMade(visit.kept_input, m));
      } else if (visit.kind == VisitKind::kBackward && visit.has_input) {
        const int boundary = std::max(visit.layers.first, 1);
        from = std::max(from, device.stream.Run(std::max(slot, StashMade(boundary, m)),
                                                costs_.HiddenIn(boundary, visit.device, 1)));
      }
      if (chained) from = std::max(from, Arrival(v, m, slot));
      if (!fresh) from = std::max(from, done.out[task - visit.slots]);
      const bool edge = task == 0 || task + 1 == count;
      done.compute[task] =
          device.compute.Run(from, edge ? duration(task == 0, task + 1 == count) : middle);

      for (int boundary : visit.outputs) MakeStash(visit, boundary, task, done);
      if (visit.has_input_gradient && eager_) {
        done.gradient_out[task] = device.d2h.Run(done.compute[task], gradient_out);
        done.Out(task, done.gradient_out[task]);
      }
    }
  }

  // That of microbatch m.
  Nanos StashMade(int boundary, int m) const {
    const std::vector<Nanos>& made = stash_made_[boundary];
    return made.empty() ? kEarlier : made[m / plan_.forward_span];
  }

  void MakeStash(const Visit& visit, int boundary, int task, Done& done) {
    const int place = stash_[boundary];
    if (place == kNotStashed) return;
    Device& device = devices_[visit.device];
    Nanos made = done.compute[task];
    if (place == kOnHost) {
      made = device.d2h.Run(made, costs_.HiddenOut(boundary, visit.device, visit.span));
    } else if (place != visit.device) {
      made = device.p2p.Run(made, costs_.HiddenTo(boundary, visit.device, place, visit.span));
    }
    if (place != visit.device) done.Out(task, made);
    std::vector<Nanos>& all = stash_made_[boundary];
    if (all.empty()) all.resize(done.compute.size());
    all[task] = made;
  }

  // The tensor of the task that begins with microbatch m, which the visit before passes on: device
  // to device, or by way of the arena.
  Nanos Arrival(size_t v, int m, Nanos slot) {
    const Visit& visit = step_.visits[v];
    const Visit& maker = step_.visits[v - 1];
    const Done& made = done_[v - 1];
    const int task = m / maker.span;
    const bool forward = maker.kind == VisitKind::kForward;
    const int boundary = forward ? maker.layers.last + 1 : maker.layers.first;
    const Nanos in = costs_.HiddenIn(boundary, visit.device, visit.span);
    Nanos out = made.compute[task] + costs_.HiddenOut(boundary, maker.device, maker.span);
    if (!forward) {
      if (eager_) out = made.gradient_out[task];
    } else if (stash_[boundary] == kOnHost) {
      out = StashMade(boundary, m);
    }
    const Nanos way = std::max(out, slot) + in;
    if (maker.device == visit.device) {
      return devices_[visit.device].stream.Run(std::max(out, slot), in);
    }
    return std::min(way, std::max(made.compute[task], slot) +
                             costs_.HiddenTo(boundary, maker.device, visit.device, visit.span));
  }

  void RunTail(const Visit& visit, Done& done) {
    Lane& d2h = devices_[visit.device].d2h;
    const Nanos last = done.compute.back();
    if (visit.kind == VisitKind::kFused) loss_ = d2h.Run(last, costs_.LossOut(visit.device));
    if (visit.kind == VisitKind::kForward) return;
    for (int use : visit.uses)
      done.gradients = d2h.Run(last, costs_.GradientOut(use, visit.device));
  }

  Nanos HostRun(Nanos from, Nanos duration) {
    host_busy_ += duration;
    return host_free_ = std::max(host_free_, from) + duration;
  }

  // Ends with the update of block 0.
  Nanos RunHost() {
    HostRun(loss_, costs_.Host(HostTaskKind::kStepScalars, -1));
    const int blocks = static_cast<int>(model_.blocks.size());
    for (size_t v = 0; v < step_.visits.size(); ++v) {
      const Visit& visit = step_.visits[v];
      if (visit.kind == VisitKind::kForward) continue;
      for (int block = blocks - 1; block >= 0; --block) {
        const int layer = model_.uses[model_.blocks[block].uses.front()].layer;
        if (!visit.layers.contains(layer)) continue;
        if (eager_) HostRun(done_[v].gradients, costs_.Update(block));
        if (!eager_ && plan_.clip) {
          HostRun(done_[v].gradients, costs_.Host(HostTaskKind::kNorm, block));
        }
      }
      host_free_ = std::max(host_free_, done_[v].gradients);
    }
    if (eager_) return host_free_;
    if (plan_.clip) HostRun(kEarlier, costs_.Host(HostTaskKind::kClip, -1));
    const Nanos end = HostRun(kEarlier, costs_.Update(0));
    for (int block = 1; block < blocks; ++block) host_busy_ += costs_.Update(block);
    return end;
  }

  const ModelSpec& model_;
  const Plan& plan_;
  const StepVisits& step_;
  TaskCosts& costs_;
  const bool eager_;
  const int microbatches_;
  std::vector<Device> devices_;
  const KeptLayout kept_;
  const std::vector<int> links_;                // LinksOfLanes
  std::set<std::pair<int, int>> kept_loads_;    // keeper, block
  std::vector<int> stash_;                      // by boundary: where
  std::vector<std::vector<Nanos>> stash_made_;  // by boundary, microbatch
  std::vector<Done> done_;                      // by visit
  std::vector<Nanos> available_;                // by block
  Nanos host_free_, host_busy_, loss_;
};

// The least time in which machines that take cost(item, machine) can share items out among them,
// even in parts: for all weights of the machines that add up to 1, no schedule is shorter than the
// sum of min over machines of weight * cost.
template <typename Cost>
double Shared(int items, int machines, const Cost& cost) {
  std::vector<double> weights(machines, 0);
  double sum = 0;
  for (int d = 0; d < machines; ++d) {
    for (int i = 0; i < items; ++i) weights[d] += cost(i, d);
    if (weights[d] <= 0) return 0;
    weights[d] = 1 / weights[d];
    sum += weights[d];
  }
  double total = 0;
  for (int i = 0; i < items; ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (int d = 0; d < machines; ++d) least = std::min(least, weights[d] / sum * cost(i, d));
    total += least;
  }
  return total;
}

}  // namespace

StepVisits VisitsOf(const ModelSpec& model, const Plan& plan) {
  StepVisits step;
  const int forwards = static_cast<int>(plan.forward_groups.size());
  const int backwards = static_cast<int>(plan.backward_groups.size());
  const int shares = plan.num_shares();
  step.visits.reserve((forwards + backwards) * shares);
  for (int f = 0; f < forwards; ++f) {
    for (int share = 0; share < shares; ++share) {
      step.visits.push_back(PlannedVisit(model, plan, VisitKind::kForward, f, share));
    }
  }
  for (int g = backwards - 1; g >= 0; --g) {
    const VisitKind kind = g + 1 == backwards ? VisitKind::kFused : VisitKind::kBackward;
    for (int share = 0; share < shares; ++share) {
      step.visits.push_back(PlannedVisit(model, plan, kind, g, share));
    }
  }
  step.items.reserve(step.visits.size());
  for (Visit& visit : step.visits) step.items.push_back(LayOutItems(model, plan, visit));
  return step;
}

PlanBound Bounds::OfPlan(const Plan& plan, const StepVisits& step) {
  return RelaxedStep(model_, plan, step, costs_).Run();
}

// Of a layer in a task of `span` microbatches.
Nanos Bounds::Marginal(TaskKind kind, int layer, int device, int span, bool kept) {
  const auto of = [&](LayerRange layers) {
    return costs_.Compute(kind, layers, device, false, false, span, kept);
  };
  const Nanos one = of({layer, layer}), more = of({layer - 1, layer}) - of({layer - 1, layer - 1});
  return std::max(Nanos(0), std::min(one, more));
}

// Blocks whose activations the devices have room for, at the most. All blocks have one shape, so it
// does not matter which of them these are.
int64_t Bounds::RoomForActivations(const Plan& shape) const {
  if (model_.measured != nullptr) return model_.num_layers();  // of any size
  const Bytes block = KeptBlockBytes(model_.config, shape.microbatch_size, shape.sequence_length);
  int64_t room = 0;
  for (const DevicePlan& device : shape.devices) {
    room += static_cast<int64_t>(static_cast<double>(device.memory.count()) /
                                 static_cast<double>(block.count()) / shape.num_microbatches);
  }
  return room;
}

void Bounds::FindMarginals(const Plan& shape, const std::vector<int>& spans) {
  const int64_t room = RoomForActivations(shape);
  marginal_.assign(model_.num_layers(), std::vector<Nanos>(costs_.num_devices()));
  for (int layer = 1; layer + 1 < model_.num_layers(); ++layer) {
    for (int d = 0; d < costs_.num_devices(); ++d) {
      Nanos least(std::numeric_limits<int64_t>::max());
      for (int span : spans) {
        const Nanos all = Marginal(TaskKind::kForward, layer, d, span, false);
        least = std::min(least, Nanos(all.count() / span));
      }
      Nanos& sum = marginal_[layer][d];
      sum = least + Marginal(TaskKind::kBackward, layer, d, 1, false);
      if (layer > room) continue;
      sum = std::min(sum, Marginal(TaskKind::kForward, layer, d, 1, true) +
                              Marginal(TaskKind::kBackward, layer, d, 1, true));
    }
  }
}

// With layers from `first` on in the fused group.
Nanos Bounds::FusedFrom(const Plan& shape, int first) {
  const int devices = costs_.num_devices(), last = model_.num_layers() - 1;
  std::vector<std::vector<double>> work(first + 1, std::vector<double>(devices));
  Nanos fused, chain;
  for (int item = 0; item <= first; ++item) {
    Nanos least(std::numeric_limits<int64_t>::max());
    for (int d = 0; d < devices; ++d) {
      const Nanos one = item < first ? marginal_[item][d]
                                     : costs_.Compute(TaskKind::kForwardBackward, {first, last}, d);
      work[item][d] = static_cast<double>(one.count()) * shape.num_microbatches;
      least = std::min(least, one);
    }
    chain += least;
    fused = least;
  }
  const double compute = Shared(first + 1, devices, [&](int i, int d) { return work[i][d]; });
  return std::max({Nanos(static_cast<int64_t>(compute)), fused * shape.num_microbatches,
                   chain + costs_.Update(0)});
}

Nanos Bounds::OfAnyPlan(const Plan& shape, const std::vector<int>& spans) {
  const int devices = costs_.num_devices(), layers = model_.num_layers();
  FindMarginals(shape, spans);
  Bytes largest;
  for (const DevicePlan& device : shape.devices) largest = std::max(largest, device.memory);
  Nanos best(std::numeric_limits<int64_t>::max());
  Bytes fused;
  for (int first = layers - 1; first >= 0; --first) {
    for (int use : model_.layers[first].uses) fused += model_.blocks[model_.uses[use].block].size();
    // Gradients are there for each use, weights for each block; this is no more than either.
    const bool fits =
        fused + BackwardWorkspaceBytes(model_, {first, layers - 1}, shape.microbatch_size,
                                       shape.sequence_length) <=
        largest;
    if (!fits && first < layers - 1) break;
    best = std::min(best, FusedFrom(shape, first));
  }
  const auto each = [&](int count, auto duration) {
    return Nanos(static_cast<int64_t>(Shared(count, devices, [&](int i, int d) {
      return static_cast<double>(duration(i, d).count());
    })));
  };
  // Weights come in once at least, gradients go out once a use.
  best = std::max(best, each(static_cast<int>(model_.blocks.size()),
                             [&](int block, int d) { return costs_.Load(block, d); }));
  best = std::max(best, each(static_cast<int>(model_.uses.size()),
                             [&](int use, int d) { return costs_.GradientOut(use, d); }));
  Nanos host = costs_.Host(HostTaskKind::kStepScalars, -1);
  for (size_t block = 0; block < model_.blocks.size(); ++block) {
    host += costs_.Update(static_cast<int>(block));
    if (shape.clip) host += costs_.Host(HostTaskKind::kNorm, static_cast<int>(block));
  }
  return std::max(best, host);
}

}  // namespace harmony
