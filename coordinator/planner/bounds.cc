#include "coordinator/planner/bounds.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "coordinator/core/kept_layout.h"
#include "coordinator/core/visits.h"

namespace harmony {
namespace {

// The schedule of one step. Time 0: the update of block 0 of the step before has completed.
class RelaxedStep {
 public:
  RelaxedStep(const ModelSpec& model, const Plan& plan, const StepVisits& step, TaskCosts& costs,
              int microbatches)
      : model_(model),
        plan_(plan),
        microbatches_(microbatches),
        step_(step),
        costs_(costs),
        eager_(plan.update == UpdateMode::kEager),
        shares_(plan.num_shares()),
        devices_(plan.devices.size()),
        kept_(model, plan),
        resources_(ResourcesOfLanes(plan, costs.model().Cores())),
        stash_(model.num_layers() + 1, kNotStashed),
        stash_made_(model.num_layers() + 1) {
    for (const StashSpec& stash : StashesOf(plan)) {
      stash_[stash.boundary] = stash.kept ? stash.group : kOnHost;
    }
  }

  PlanBound Run() {
    FindWeights();
    done_.resize(step_.visits.size());
    size_t tasks = 0;
    for (const Visit& visit : step_.visits)
      tasks += static_cast<size_t>(microbatches_ / visit.span);
    times_.assign(3 * tasks, kEarlier);
    size_t at = 0;
    for (size_t v = 0; v < done_.size(); ++v) {
      const auto count = static_cast<size_t>(microbatches_ / step_.visits[v].span);
      for (absl::Span<Nanos>* times : {&done_[v].compute, &done_[v].out, &done_[v].gradient_out}) {
        *times = absl::MakeSpan(&times_[at], count);
        at += count;
      }
    }
    for (size_t v = 0; v < step_.visits.size(); ++v) RunVisit(v);
    Nanos chain = RunHost();
    if (microbatches_ < plan_.share_microbatches()) chain = std::max(chain, Through());
    Nanos copies;
    std::vector<Nanos> busy(resources_.of_lane.size());
    const LaneTable table(static_cast<int>(devices_.size()));
    for (int d = 0; d < table.num_devices(); ++d) {
      const Device& device = devices_[d];
      busy[table.IndexOf({LaneKind::kCompute, d})] = device.compute.busy;
      busy[table.IndexOf({LaneKind::kH2DBulk, d})] = device.bulk.busy;
      busy[table.IndexOf({LaneKind::kH2DStream, d})] = device.stream.busy;
      busy[table.IndexOf({LaneKind::kD2H, d})] = device.d2h.busy;
      busy[table.IndexOf({LaneKind::kP2P, d})] = device.p2p.busy;
      copies += device.bulk.busy + device.stream.busy + device.d2h.busy;
    }
    const Nanos lane = std::max(host_busy_, BusiestResource(resources_, busy));
    return {std::max(chain, lane), chain, lane, copies};
  }

 private:
  static constexpr int kNotStashed = -2, kOnHost = -1;  // else the backward group that keeps it

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
    Nanos begun;                 // the first task
    std::array<Nanos*, 4> Streamed() { return {&compute.busy, &stream.busy, &d2h.busy, &p2p.busy}; }
  };
  // When what a visit made is there.
  struct Done {
    absl::Span<Nanos> compute;       // by task
    absl::Span<Nanos> out;           // the last certain copy of the task's outputs
    absl::Span<Nanos> gradient_out;  // of the input gradient, to the arena; with eager updates
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
      } else if (!kept_loads_.insert({visit.share, visit.keeper, block}).second) {
        continue;  // the forward has loaded it
      }
      const Nanos from = std::max(available_[block], place);
      loaded = device.bulk.Run(from, costs_.Load(block, visit.device));
    }
    const size_t gradients = visit.kind == VisitKind::kForward ? 0 : visit.uses.size();
    for (size_t i = 0; i < gradients; ++i) stacked += items[item++].AlignUp(kSlotAlignment);
    done.to_streams = stacked;
    if (visit.has_loss) stacked += items[item++].AlignUp(kSlotAlignment);
    done.to_outputs = stacked + items[item].AlignUp(kSlotAlignment);
    const Nanos in_free = PlaceFree(device, resident, stacked, done.to_outputs);
    done.total = done.to_outputs + items[item + 1].AlignUp(kSlotAlignment);
    // The first task needs all of it.
    const Nanos place = PlaceFree(device, resident, Bytes(0), done.total);
    Stream(v, std::max(loaded, place), in_free);
    device.before = device.last;
    device.last = static_cast<int>(v);
  }

  // All tasks of a visit.
  void Stream(size_t v, Nanos ready, Nanos in_free) {
    const Visit& visit = step_.visits[v];
    const int span = visit.span, count = microbatches_ / span;
    const int replica = std::min(plan_.replica_microbatches() / span, count);  // its tasks
    Device& device = devices_[visit.device];
    Done& done = done_[v];
    const auto duration = [&](bool first, bool last) { return Duration(visit, first, last); };
    const Nanos middle = duration(false, false);
    const bool chained = visit.kind == VisitKind::kBackward
                             ? visit.has_output_gradient
                             : visit.has_input && visit.kept_input < 0;
    const Nanos gradient_out = costs_.HiddenOut(visit.layers.first, visit.device, 1);
    const int more =
        plan_.share_microbatches() / span - count;  // tasks, like the one in the middle
    std::array<Nanos, 4> busy{};
    for (int task = 0; task < count; ++task) {
      if (more > 0 && (task == 1 || task == 2)) {
        for (size_t i = 0; i < busy.size(); ++i) {
          Nanos& sum = *device.Streamed()[i];
          const Nanos now = sum;
          if (task == 2) sum += (now - busy[i]) * more;
          busy[i] = now;
        }
      }
      const int m = FirstOf(visit) + task * span;
      const bool fresh = task < visit.slots;
      const Nanos slot = fresh ? in_free : done.compute[task - visit.slots];
      Nanos from = task == 0 ? ready : kEarlier;
      for (int input : visit.inputs) {
        const Nanos copy = costs_.InputIn(input, visit.device, span);
        from = std::max(from, device.stream.Run(slot, copy));
      }
      if (visit.kept_input >= 0) {
        from = std::max(from, StashMade(visit.kept_input, m));
      } else if (visit.kind == VisitKind::kBackward && visit.has_input) {
        const int boundary = std::max(visit.layers.first, 1);
        from = std::max(from, device.stream.Run(std::max(slot, StashMade(boundary, m)),
                                                costs_.HiddenIn(boundary, visit.device, 1)));
      }
      if (chained) from = std::max(from, Arrival(v, m, slot));
      if (!fresh) from = std::max(from, done.out[task - visit.slots]);
      const bool begins = task % replica == 0, ends = (task + 1) % replica == 0;
      if (begins) from = std::max(from, done.gradients);  // those of the replica before are out
      const Nanos takes = begins || ends ? duration(begins, ends) : middle;
      const bool first = device.compute.busy == Nanos();
      done.compute[task] = device.compute.Run(from, takes);
      if (first) device.begun = done.compute[task] - takes;

      for (int boundary : visit.outputs) MakeStash(visit, boundary, task, done);
      if (visit.has_input_gradient && eager_) {
        done.gradient_out[task] = device.d2h.Run(done.compute[task], gradient_out);
        done.Out(task, done.gradient_out[task]);
      }
      if (ends) EndReplica(visit, done.compute[task], done);
    }
  }

  int FirstOf(const Visit& visit) const { return visit.share * plan_.share_microbatches(); }

  // That of microbatch m.
  Nanos StashMade(int boundary, int m) const {
    const std::vector<Nanos>& made = stash_made_[boundary];
    return made.empty() ? kEarlier : made[m / plan_.forward_span];
  }

  void MakeStash(const Visit& visit, int boundary, int task, Done& done) {
    const int keeper = stash_[boundary];
    if (keeper == kNotStashed) return;
    const int place =
        keeper == kOnHost ? kOnHost : DeviceOf(plan_, plan_.backward_groups[keeper], visit.share);
    Device& device = devices_[visit.device];
    Nanos made = done.compute[task];
    if (place == kOnHost) {
      made = device.d2h.Run(made, costs_.HiddenOut(boundary, visit.device, visit.span));
    } else if (place != visit.device) {
      made = device.p2p.Run(made, costs_.HiddenTo(boundary, visit.device, place, visit.span));
    }
    if (place != visit.device) done.Out(task, made);
    std::vector<Nanos>& all = stash_made_[boundary];
    if (all.empty()) all.resize(done.compute.size() * shares_);
    all[FirstOf(visit) / visit.span + task] = made;
  }

  // The tensor of the task that begins with microbatch m, which the visit before passes on: device
  // to device, or by way of the arena.
  Nanos Arrival(size_t v, int m, Nanos slot) {
    const Visit& visit = step_.visits[v];
    const Visit& maker = step_.visits[v - shares_];  // of the same share
    const Done& made = done_[v - shares_];
    const int task = (m - FirstOf(visit)) / maker.span;
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

  void EndReplica(const Visit& visit, Nanos last, Done& done) {
    if (visit.kind == VisitKind::kForward) return;
    Lane& d2h = devices_[visit.device].d2h;
    if (visit.kind == VisitKind::kFused) {
      loss_ = std::max(loss_, d2h.Run(last, costs_.LossOut(visit.device)));
    }
    for (int use : visit.uses) {
      done.gradients = d2h.Run(last, costs_.GradientOut(use, visit.device));
    }
  }

  Nanos Duration(const Visit& visit, bool first, bool last) {
    return costs_.Compute(TaskOf(visit.kind), visit.layers, visit.device, first, last, visit.span,
                          visit.activations >= 0);
  }

  // By the devices: from a device's first task to its last is no less than all of them; behind the
  // last one, the last microbatch runs through all other groups.
  Nanos Through() {
    Nanos left = costs_.Update(0), most;
    for (int use : step_.visits.back().uses) {
      left += costs_.GradientOut(use, step_.visits.back().device);
    }
    std::vector<bool> seen(devices_.size());
    for (auto visit = step_.visits.rbegin(); visit != step_.visits.rend(); ++visit) {
      const Device& device = devices_[visit->device];
      if (!seen[visit->device]) most = std::max(most, device.begun + device.compute.busy + left);
      seen[visit->device] = true;
      left += Duration(*visit, false, true);
    }
    return most;
  }

  Nanos HostRun(Nanos from, Nanos duration) {
    host_busy_ += duration;
    return host_free_ = std::max(host_free_, from) + duration;
  }

  // Ends with the update of block 0.
  Nanos RunHost() {
    HostRun(loss_, costs_.Host(HostTaskKind::kStepScalars, -1));
    const int blocks = static_cast<int>(model_.blocks.size());
    for (size_t v = 0; v < step_.visits.size(); v += static_cast<size_t>(shares_)) {
      const Visit& visit = step_.visits[v];
      if (visit.kind == VisitKind::kForward) continue;
      Nanos gradients = kEarlier;
      for (int share = 0; share < shares_; ++share) {
        gradients = std::max(gradients, done_[v + static_cast<size_t>(share)].gradients);
      }
      for (int block = blocks - 1; block >= 0; --block) {
        const int layer = model_.uses[model_.blocks[block].uses.front()].layer;
        if (!visit.layers.contains(layer)) continue;
        if (eager_) HostRun(gradients, costs_.Update(block));
        if (!eager_ && plan_.clip) {
          HostRun(gradients, costs_.Host(HostTaskKind::kNorm, block));
        }
      }
      host_free_ = std::max(host_free_, gradients);
    }
    if (eager_) return host_free_;
    if (plan_.clip) HostRun(kEarlier, costs_.Host(HostTaskKind::kClip, -1));
    const Nanos end = HostRun(kEarlier, costs_.Update(0));
    for (int block = 1; block < blocks; ++block) host_busy_ += costs_.Update(block);
    return end;
  }

  const ModelSpec& model_;
  const Plan& plan_;
  const int microbatches_;
  const StepVisits& step_;
  TaskCosts& costs_;
  const bool eager_;
  const int shares_;
  std::vector<Device> devices_;
  const KeptLayout kept_;
  const LaneResources resources_;
  std::set<std::tuple<int, int, int>> kept_loads_;  // share, keeper, block
  std::vector<int> stash_;                          // by boundary: where
  std::vector<std::vector<Nanos>> stash_made_;      // by boundary, forward task
  std::vector<Nanos> times_;                        // that `done_` points to
  std::vector<Done> done_;                          // by visit
  std::vector<Nanos> available_;                    // by block
  Nanos host_free_, host_busy_, loss_;
};

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

int SampleOfMicrobatches(const Plan& plan) {
  constexpr int kMany = 2048, kLeast = 512, kPart = 16, kLeastTasks = 4;
  const int all = plan.num_microbatches, span = plan.forward_span;
  if (all <= kMany || plan.mode != ParallelMode::kPipeline || plan.replicas > 1) return all;
  const int tasks = std::max({kLeast, all / kPart, kLeastTasks * span}) / span;
  const int sample = (tasks + tasks % 2) * span;
  return sample < all / 2 ? sample : all;
}

PlanBound Bounds::OfPlan(const Plan& plan, const StepVisits& step, int microbatches) {
  const int sample = microbatches > 0 ? microbatches : SampleOfMicrobatches(plan);
  return RelaxedStep(model_, plan, step, costs_, std::min(sample, plan.share_microbatches())).Run();
}

}  // namespace harmony
