#include "coordinator/planner/timing/bounds.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "coordinator/dispatch/graph/group_executions.h"
#include "coordinator/dispatch/memory/kept_layout.h"

namespace harmony::planner {
namespace {

// The schedule of one step. Time 0: the update of block 0 of the step before has completed.
class RelaxedStep {
 public:
  RelaxedStep(const model::ModelSpec& model, const plan::Plan& plan, const StepExecutions& step,
              TaskCosts& costs, int microbatches)
      : model_(model),
        plan_(plan),
        microbatches_(microbatches),
        step_(step),
        costs_(costs),
        eager_(plan.update == job::UpdateMode::kEager),
        devices_(plan.devices.size()),
        kept_(model, plan),
        resources_(plan::ResourcesOfLanes(plan, costs.model().Cores())),
        stash_(model.num_layers() + 1, kNotStashed),
        stash_made_(model.num_layers() + 1) {
    for (const plan::StashSpec& stash : plan::StashesOf(plan)) {
      stash_[stash.boundary] = stash.kept ? stash.group : kOnHost;
    }
    parts_.reserve(model.blocks.size());
    for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block) {
      parts_.push_back(plan::PartsOfBlock(model, plan, block));
    }
  }

  PlanBound Run() {
    FindWeights();
    done_.resize(step_.executions.size());
    size_t tasks = 0;
    for (const dispatch::GroupExecution& execution : step_.executions)
      tasks += static_cast<size_t>(TasksOf(execution));
    times_.assign(3 * tasks, kEarlier);
    size_t at = 0;
    for (size_t v = 0; v < done_.size(); ++v) {
      const auto count = static_cast<size_t>(TasksOf(step_.executions[v]));
      for (absl::Span<Nanos>* times : {&done_[v].compute, &done_[v].out, &done_[v].gradient_out}) {
        *times = absl::MakeSpan(&times_[at], count);
        at += count;
      }
    }
    for (size_t v = 0; v < step_.executions.size(); ++v) {
      const dispatch::GroupExecution& execution = step_.executions[v];
      if (execution.shard == 0) makers_ = std::exchange(group_, v);
      RunExecution(v);
    }
    for (int d : plan_.backward_groups[0].devices) {
      if (step_.for_all > 0) devices_[d] = devices_[d % step_.for_all];
    }
    Nanos chain = RunHost();
    if (microbatches_ < plan_.num_microbatches) chain = std::max(chain, Through());
    Nanos copies;
    std::vector<plan::LaneWork> work(resources_.of_lane.size());
    const command::LaneTable table(static_cast<int>(devices_.size()));
    for (int d = 0; d < table.num_devices(); ++d) {
      const Device& device = devices_[d];
      work[table.IndexOf({command::LaneKind::kCompute, d})] = device.compute.Work();
      work[table.IndexOf({command::LaneKind::kH2DBulk, d})] = device.bulk.Work();
      work[table.IndexOf({command::LaneKind::kH2DStream, d})] = device.stream.Work();
      work[table.IndexOf({command::LaneKind::kD2H, d})] = device.d2h.Work(device.gradients);
      work[table.IndexOf({command::LaneKind::kP2P, d})] = device.p2p.Work(device.sums);
      copies += device.bulk.busy + device.stream.busy + device.d2h.busy + device.gradients.busy;
    }
    work[table.IndexOf({command::LaneKind::kHostCompute, 0})].busy = host_busy_;
    const Nanos lane = plan::BusiestResource(resources_, work);
    return {std::max(chain, lane), chain, lane, copies};
  }

 private:
  static constexpr int kNotStashed = -2, kOnHost = -1;  // else the backward group that keeps it

  struct Lane {
    Nanos free = kEarlier, busy;
    int64_t commands = 0;  // at least
    Nanos Run(Nanos from, Nanos duration) {
      free = std::max(free, from) + duration;
      busy += duration;
      ++commands;
      return free;
    }
    plan::LaneWork Work() const { return {busy, commands}; }
    // Of a lane with another queue beside this one.
    plan::LaneWork Work(const Lane& beside) const {
      return {busy + beside.busy, commands + beside.commands};
    }
  };
  struct Device {
    Lane compute, bulk, stream, d2h, p2p;
    Lane gradients, sums;        // by the same lanes as d2h and p2p, in queues beside them
    int last = -1, before = -1;  // executions
    Nanos begun;                 // the first task
    std::array<Lane*, 4> Streamed() { return {&compute, &stream, &d2h, &p2p}; }
  };
  // When what an execution made is there.
  struct Done {
    absl::Span<Nanos> compute;       // by task
    absl::Span<Nanos> out;           // the last certain copy of the task's outputs
    absl::Span<Nanos> gradient_out;  // of the input gradient, to the arena; with eager updates
    bool certain_out = false;
    void Out(int task, Nanos at) {
      out[task] = std::max(out[task], at);
      certain_out = true;
    }
    Nanos gradients = kEarlier;      // all of them
    Nanos last_gradient = kEarlier;  // that of the last reference, which leaves first
    // Stacked sizes: all, and up to where items begin and end.
    Bytes total, outputs, outputs_end, last_reference, gradients_end;
  };

  // Blocks of layer 0's forward are updated in this step's beginning.
  void FindWeights() {
    available_.assign(model_.blocks.size(), kEarlier);
    available_[0] = Nanos(0);
    if (eager_) return;  // block 0 is updated last
    Nanos sum;
    for (size_t block = 1; block < available_.size(); ++block) {
      sum += UpdateOf(static_cast<int>(block));
      available_[block] = sum;
    }
    host_free_ = sum;
  }

  // Until when something of the executions before, on the same device, certainly lies in [begin,
  // end) of what this execution stacks. The execution before last began at the same end of the
  // region, the last one at the other end, its last item nearest to us.
  Nanos PlaceFree(const Device& device, Bytes resident, Bytes begin, Bytes end) const {
    if (begin == end) return kEarlier;
    Nanos at = kEarlier;
    if (device.before >= 0 && begin < done_[device.before].total) {
      at = done_[device.before].compute.back();
    }
    if (device.last < 0 || end + done_[device.last].total <= resident) return at;
    const Done& last = done_[device.last];
    at = std::max(at, last.compute.back());
    // Whether it meets what lies at [from, to) of what the last one stacks.
    const auto meets = [&](Bytes from, Bytes to) {
      return end + to > resident && begin + from < resident;
    };
    if (last.certain_out && meets(last.outputs, last.outputs_end))
      at = std::max(at, last.out.back());
    const bool meets_gradients = meets(last.last_reference, last.gradients_end);
    return meets_gradients ? std::max(at, last.last_gradient) : at;
  }

  void RunExecution(size_t v) {
    const dispatch::GroupExecution& execution = step_.executions[v];
    const dispatch::ItemSizes& items = step_.items[v];
    Device& device = devices_[execution.device];
    const Bytes region(plan_.devices[execution.device].resident.count() / kSlotAlignment *
                       kSlotAlignment);
    const Bytes resident = region - kept_.bytes(execution.device);
    Done& done = done_[v];
    // Up to where item number `item` begins.
    begins_.assign(1, Bytes());
    for (Bytes item : items) begins_.push_back(begins_.back() + item.AlignUp(kSlotAlignment));
    const auto begin = [&](int64_t item) { return begins_[static_cast<size_t>(item)]; };
    const int peer = PeerOf(execution);
    Nanos loaded = kEarlier;
    for (int i = 0; i < static_cast<int>(execution.blocks.size()); ++i) {
      const int block = execution.blocks[i];
      Nanos place = kEarlier;
      if (i < execution.own_blocks) {
        place = PlaceFree(device, resident, Bytes(0), begin(execution.first_weight + i + 1));
      } else if (!kept_loads_.insert({execution.shard, execution.keeper, block}).second) {
        continue;  // the forward has loaded it
      }
      const Nanos from = std::max(available_[block], place);
      // What another device may pass on takes turns with nothing that is certain.
      loaded = peer < 0 ? device.bulk.Run(from, costs_.Load(block, execution.device))
                        : std::max(loaded, from + costs_.PassedLoad(block, peer, execution.device));
    }
    done.outputs = begin(execution.out);
    done.outputs_end = begin(execution.out + 1);
    done.gradients_end = begin(execution.waiting_sums);
    done.last_reference =
        execution.references.empty() ? done.gradients_end : begin(execution.waiting_sums - 1);
    done.total = begin(execution.end_item);
    const Nanos in_free = PlaceFree(device, resident, begin(execution.in), done.outputs);
    // The first task needs all but the buffers of sums that wait, unless it is the one that waits
    // for them.
    const Nanos place = PlaceFree(device, resident, Bytes(0), done.gradients_end);
    const Nanos all_free = PlaceFree(device, resident, Bytes(0), done.total);
    Stream(v, std::max(loaded, place), in_free, all_free);
    device.before = device.last;
    device.last = static_cast<int>(v);
  }

  // All tasks of an execution.
  void Stream(size_t v, Nanos ready, Nanos in_free, Nanos all_free) {
    const dispatch::GroupExecution& execution = step_.executions[v];
    const int task_microbatches = execution.task_microbatches, count = TasksOf(execution);
    // Tasks that add to one part of the gradients.
    const int part = execution.kind == dispatch::ExecutionKind::kForward
                         ? count
                         : std::min(execution.sum.microbatches, count);
    Device& device = devices_[execution.device];
    Done& done = done_[v];
    const auto duration = [&](bool first, bool last) { return Duration(execution, first, last); };
    const Nanos middle = duration(false, false);
    const Nanos gradient_out = costs_.HiddenOut(execution.layers.first, execution.device, 1);
    // Tasks, like the one in the middle.
    const int more = execution.shard_count / task_microbatches - count;
    std::array<Lane, 4> before;
    for (int task = 0; task < count; ++task) {
      if (more > 0 && (task == 1 || task == 2)) {
        for (size_t i = 0; i < before.size(); ++i) {
          Lane& lane = *device.Streamed()[i];
          const Lane now = lane;
          if (task == 2) {
            lane.busy += (now.busy - before[i].busy) * more;
            lane.commands += (now.commands - before[i].commands) * more;
          }
          before[i] = now;
        }
      }
      const int m = execution.shard_first + task * task_microbatches;
      const bool fresh = task < execution.slots;
      const Nanos slot = fresh ? in_free : done.compute[task - execution.slots];
      Nanos from = task == 0 ? ready : kEarlier;
      if (task == execution.waiting_from) from = std::max(from, all_free);
      for (int input : execution.inputs) {
        const Nanos copy = costs_.InputIn(input, execution.device, task_microbatches);
        from = std::max(from, device.stream.Run(slot, copy));
      }
      const int boundary = execution.input;
      if (execution.input_kept) {
        from = std::max(from, StashMade(boundary, m));
      } else if (execution.kind == dispatch::ExecutionKind::kBackward && execution.has_input()) {
        from = std::max(from, device.stream.Run(std::max(slot, StashMade(boundary, m)),
                                                costs_.HiddenIn(boundary, execution.device, 1)));
      }
      if (execution.chained()) from = std::max(from, Arrival(v, m, slot));
      if (!fresh) from = std::max(from, done.out[task - execution.slots]);
      const bool begins = task % part == 0, ends = (task + 1) % part == 0;
      const bool stores = ends && execution.sum.given_to < 0;
      const Nanos takes = begins || ends ? duration(begins, stores) : middle;
      const bool first = device.compute.busy == Nanos();
      // The last replica begins no earlier than its buffers, the gradients of the part before, are
      // out, and so does not end before.
      const bool awaits = execution.kind != dispatch::ExecutionKind::kForward &&
                          dispatch::AwaitsPartBefore(plan_, execution, m);
      Nanos copied = awaits ? done.gradients : kEarlier;
      // Nor before the sums that it takes are there.
      if (task + 1 == count) copied = std::max(copied, SumsTaken(v));
      done.compute[task] = device.compute.Run(std::max(from, copied - takes), takes);
      if (first) device.begun = done.compute[task] - takes;

      for (int boundary : execution.outputs) MakeStash(execution, boundary, task, done);
      if (execution.has_input_gradient && eager_) {
        done.gradient_out[task] = device.d2h.Run(done.compute[task], gradient_out);
        done.Out(task, done.gradient_out[task]);
      }
      if (ends) EndPart(execution, done.compute[task], done);
    }
  }

  int TasksOf(const dispatch::GroupExecution& execution) const {
    return std::min(microbatches_, execution.shard_count) / execution.task_microbatches;
  }

  const plan::LayerGroup& GroupOf(const dispatch::GroupExecution& execution) const {
    return dispatch::PlannedGroup(plan_, execution.kind, execution.group);
  }

  // The device that may pass weights on to it; -1: none does.
  int PeerOf(const dispatch::GroupExecution& execution) const {
    const plan::LayerGroup& group = GroupOf(execution);
    const int peer = plan::WeightPeer(plan_, group, execution.shard);
    return peer < 0 ? -1 : plan::ShardOf(plan_, group, peer).device;
  }

  // That of microbatch m.
  Nanos StashMade(int boundary, int m) const {
    const std::vector<Nanos>& made = stash_made_[boundary];
    return made.empty() ? kEarlier : made[m / plan_.microbatches_per_forward_task];
  }

  void MakeStash(const dispatch::GroupExecution& execution, int boundary, int task, Done& done) {
    const int keeper = stash_[boundary];
    if (keeper == kNotStashed) return;
    const int m = execution.shard_first + task * execution.task_microbatches;
    const int place =
        keeper == kOnHost ? kOnHost : plan::DeviceOf(plan_, plan_.backward_groups[keeper], m);
    Device& device = devices_[execution.device];
    Nanos made = done.compute[task];
    if (place == kOnHost) {
      made = device.d2h.Run(
          made, costs_.HiddenOut(boundary, execution.device, execution.task_microbatches));
    } else if (place != execution.device) {
      made = device.p2p.Run(
          made, costs_.HiddenTo(boundary, execution.device, place, execution.task_microbatches));
    }
    if (place != execution.device) done.Out(task, made);
    std::vector<Nanos>& all = stash_made_[boundary];
    if (all.empty()) {
      all.resize(std::min(microbatches_, plan_.num_microbatches) / execution.task_microbatches);
    }
    all[m / execution.task_microbatches] = made;
  }

  // The tensor of the task that begins with microbatch m, which the execution before passes on:
  // device to device, or by way of the arena.
  Nanos Arrival(size_t v, int m, Nanos slot) {
    const dispatch::GroupExecution& execution = step_.executions[v];
    size_t u = makers_;
    while (step_.executions[u].shard_first + step_.executions[u].shard_count <= m) ++u;
    const dispatch::GroupExecution& maker = step_.executions[u];
    const Done& made = done_[u];
    const int task = (m - maker.shard_first) / maker.task_microbatches;
    const bool forward = maker.kind == dispatch::ExecutionKind::kForward;
    const int boundary = forward ? maker.layers.last + 1 : maker.layers.first;
    const Nanos in = costs_.HiddenIn(boundary, execution.device, execution.task_microbatches);
    Nanos out =
        made.compute[task] + costs_.HiddenOut(boundary, maker.device, maker.task_microbatches);
    if (!forward) {
      if (eager_) out = made.gradient_out[task];
    } else if (stash_[boundary] == kOnHost) {
      out = StashMade(boundary, m);
    }
    const Nanos way = std::max(out, slot) + in;
    if (maker.device == execution.device) {
      return devices_[execution.device].stream.Run(std::max(out, slot), in);
    }
    return std::min(way, std::max(made.compute[task], slot) +
                             costs_.HiddenTo(boundary, maker.device, execution.device,
                                             execution.task_microbatches));
  }

  void EndPart(const dispatch::GroupExecution& execution, Nanos last, Done& done) {
    if (execution.kind == dispatch::ExecutionKind::kForward) return;
    Device& device = devices_[execution.device];
    if (execution.kind == dispatch::ExecutionKind::kFused) {
      loss_ = std::max(loss_, device.d2h.Run(last, costs_.LossOut(execution.device)));
    }
    const bool passed = execution.sum.given_to >= 0;
    Lane& lane = passed ? device.sums : device.gradients;
    const int taker =
        passed ? plan::ShardOf(plan_, GroupOf(execution), execution.sum.given_to).device : -1;
    for (auto reference = execution.references.rbegin(); reference != execution.references.rend();
         ++reference) {
      done.gradients = lane.Run(last, passed ? costs_.SumTo(*reference, execution.device, taker)
                                             : costs_.GradientOut(*reference, execution.device));
      if (reference == execution.references.rbegin()) done.last_gradient = done.gradients;
    }
  }

  // When they are with the execution that takes them.
  Nanos SumsTaken(size_t v) const {
    const dispatch::GroupExecution& execution = step_.executions[v];
    Nanos at = kEarlier;
    if (execution.sum.taken == 0) return at;
    const plan::LayerGroup& group = GroupOf(execution);
    const plan::Shard own = plan::ShardOf(plan_, group, execution.shard);
    const size_t first = v - static_cast<size_t>(execution.shard);
    for (int number = 0; number < execution.sum.taken; ++number) {
      const int giver = plan::GiverOf(plan_, group, own, number);
      at = std::max(at, done_[first + static_cast<size_t>(giver)].gradients);
    }
    return at;
  }

  Nanos Duration(const dispatch::GroupExecution& execution, bool first, bool last) {
    return costs_.Compute(dispatch::TaskOf(execution.kind), execution.layers, execution.device,
                          first, last, execution.task_microbatches, execution.activations >= 0);
  }

  // By the devices: from a device's first task to its last is no less than all of them; behind the
  // last one, the last microbatch runs through all other groups.
  Nanos Through() {
    Nanos left = UpdateOf(0), most;
    for (int reference : step_.executions.back().references) {
      left += costs_.GradientOut(reference, step_.executions.back().device);
    }
    std::vector<bool> seen(devices_.size());
    for (auto execution = step_.executions.rbegin(); execution != step_.executions.rend();
         ++execution) {
      const Device& device = devices_[execution->device];
      if (!seen[execution->device])
        most = std::max(most, device.begun + device.compute.busy + left);
      seen[execution->device] = true;
      left += Duration(*execution, false, true);
    }
    return most;
  }

  Nanos UpdateOf(int block) const { return costs_.Update(block, parts_[block]); }

  Nanos HostRun(Nanos from, Nanos duration) {
    host_busy_ += duration;
    return host_free_ = std::max(host_free_, from) + duration;
  }

  // Ends with the update of block 0.
  Nanos RunHost() {
    HostRun(loss_, costs_.StepScalars());
    const int blocks = static_cast<int>(model_.blocks.size());
    for (size_t v = 0; v < step_.executions.size(); ++v) {
      const dispatch::GroupExecution& execution = step_.executions[v];
      if (execution.kind == dispatch::ExecutionKind::kForward || execution.shard > 0) continue;
      Nanos gradients = kEarlier;
      const int shards =
          step_.for_all > 0 ? step_.for_all : GroupOf(execution).devices.num_shards();
      for (int shard = 0; shard < shards; ++shard) {
        gradients = std::max(gradients, done_[v + static_cast<size_t>(shard)].gradients);
      }
      for (int block : model::BlocksCompletedBy(model_, execution.layers)) {
        if (eager_) HostRun(gradients, UpdateOf(block));
        if (!eager_ && plan_.clip) HostRun(gradients, costs_.Norm(block, parts_[block]));
      }
      host_free_ = std::max(host_free_, gradients);
    }
    if (eager_) return host_free_;
    if (plan_.clip) HostRun(kEarlier, costs_.Clip());
    const Nanos end = HostRun(kEarlier, UpdateOf(0));
    for (int block = 1; block < blocks; ++block) host_busy_ += UpdateOf(block);
    return end;
  }

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const int microbatches_;
  const StepExecutions& step_;
  TaskCosts& costs_;
  const bool eager_;
  std::vector<Device> devices_;
  const dispatch::KeptLayout kept_;
  const plan::LaneResources resources_;
  std::set<std::tuple<int, int, int>> kept_loads_;  // shard, keeper, block
  std::vector<int> parts_;                          // of its gradients, by block
  size_t group_ = 0,
         makers_ = 0;       // the first execution of the group at work, and of the one before
  std::vector<int> stash_;  // by boundary: where
  std::vector<std::vector<Nanos>> stash_made_;  // by boundary, forward task
  std::vector<Nanos> times_;                    // that `done_` points to
  std::vector<Done> done_;                      // by execution
  std::vector<Nanos> available_;                // by block
  std::vector<Bytes> begins_;                   // of RunExecution: of each item
  Nanos host_free_, host_busy_, loss_;
};

}  // namespace

PlanBound Bounds::OfPlan(const plan::Plan& plan, const StepExecutions& step, int microbatches) {
  const int sample = microbatches > 0 ? microbatches : SampleOfMicrobatches(plan);
  return RelaxedStep(model_, plan, step, costs_, sample).Run();
}

}  // namespace harmony::planner
