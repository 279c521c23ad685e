// What pipeline schedules share: stages balanced by time, and what they send each other.

#include <algorithm>
#include <map>
#include <utility>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

namespace {

// A microbatch's forward and backward of a layer, what is recomputed included.
Nanos TimeOf(const LayerCosts& costs, int layer, int device, Recompute recompute) {
  const bool layers = recompute == Recompute::kLayers;
  const Nanos once = costs.Forward(layer, device, layers) + costs.Backward(layer, device, layers);
  return recompute == Recompute::kStage ? once + costs.Forward(layer, device, /*recompute=*/true)
                                        : once;
}

}  // namespace

std::vector<model::LayerRange> BalancedStages(const LayerCosts& costs, Recompute recompute,
                                              bool last_keeps) {
  const int layers = costs.num_layers();
  const int stages = std::min(costs.num_devices(), layers);
  // Devices may differ: the time of a layer on a device is that device's.
  std::vector<std::vector<Nanos>> until(static_cast<size_t>(stages));  // of layers [0, i)
  for (int s = 0; s < stages; ++s) {
    std::vector<Nanos>& sums = until[static_cast<size_t>(s)];
    const bool keeps = recompute == Recompute::kStage && last_keeps && s + 1 == stages;
    sums.push_back(Nanos());
    for (int l = 0; l < layers; ++l) {
      sums.push_back(sums.back() + TimeOf(costs, l, s, keeps ? Recompute::kNothing : recompute));
    }
  }
  // best[s][i]: the longest of stages 0..s, which have layers [0, i); cut[s][i]: where s begins.
  const auto width = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<Nanos>> best(static_cast<size_t>(stages), std::vector<Nanos>(width));
  std::vector<std::vector<int>> cut(static_cast<size_t>(stages), std::vector<int>(width, 0));
  for (int s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    for (int i = s + 1; i <= layers; ++i) {
      Nanos& longest = best[at][static_cast<size_t>(i)];
      longest = s == 0 ? until[at][static_cast<size_t>(i)] : Seconds(1'000'000'000);
      for (int c = s; s > 0 && c < i; ++c) {
        const Nanos own = until[at][static_cast<size_t>(i)] - until[at][static_cast<size_t>(c)];
        const Nanos with = std::max(best[at - 1][static_cast<size_t>(c)], own);
        if (with >= longest) continue;
        longest = with;
        cut[at][static_cast<size_t>(i)] = c;
      }
    }
  }
  std::vector<model::LayerRange> ranges(static_cast<size_t>(stages));
  int end = layers;
  for (int s = stages - 1; s >= 0; --s) {
    const int begin = cut[static_cast<size_t>(s)][static_cast<size_t>(end)];
    ranges[static_cast<size_t>(s)] = {begin, end - 1};
    end = begin;
  }
  return ranges;
}

namespace {

class Pipeline {
 public:
  Pipeline(const std::vector<StageOrder>& orders, int microbatches, int weight_versions,
           Simulation* simulation)
      : orders_(orders),
        microbatches_(microbatches),
        versions_(weight_versions),
        simulation_(*simulation),
        next_(orders.size(), 0) {}

  // Adds the tasks of a step: each stage's next one as soon as what it waits for has been added.
  void RunStep(int step) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < orders_.size(); ++stage) {
        while (next_[stage] < orders_[stage].tasks.size() &&
               orders_[stage].tasks[next_[stage]].step <= step && TryNext(stage)) {
          moved = true;
        }
      }
    }
  }

 private:
  int IdOf(const StageTask& task) const { return task.step * microbatches_ + task.microbatch; }

  bool TryNext(size_t stage) {
    const StageTask& task = orders_[stage].tasks[next_[stage]];
    const int id = IdOf(task);
    DeviceProgram& device = simulation_.devices[stage];
    const bool last_stage = stage + 1 == orders_.size();
    const auto input = inputs_.find({id, stage});
    const auto gradient = gradients_.find({id, stage});
    if (stage > 0 && input == inputs_.end()) return false;
    if (!task.forward && !last_stage && gradient == gradients_.end()) return false;
    const Operation arrival = stage > 0 ? input->second : kNoOperation;
    if (task.forward) {
      const StageTask& next = orders_[stage].tasks[next_[stage] + 1];  // backwards end each list
      Forward(stage, device, task, arrival, /*keeps=*/!next.forward && IdOf(next) == id);
    } else {
      Backward(stage, device, task, last_stage ? arrival : gradient->second);
    }
    ++next_[stage];
    return true;
  }

  void Forward(size_t stage, DeviceProgram& device, const StageTask& task, Operation arrival,
               bool keeps) {
    const int id = IdOf(task), head = simulation_.costs.num_layers() - 1;
    Operation made = kNoOperation;
    for (int layer = device.layers().first; layer <= std::min(device.layers().last, head - 1);
         ++layer) {
      made = device.Forward(id, layer, task.step % versions_, arrival, keeps);
    }
    if (stage + 1 < orders_.size()) {
      inputs_[{id, stage + 1}] = device.Send(device.layers().last + 1, made);
    }
  }

  void Backward(size_t stage, DeviceProgram& device, const StageTask& task, Operation arrival) {
    const int id = IdOf(task);
    const int done = ++done_[{task.step, stage}];
    const bool first = done == 1, last = done == microbatches_;
    device.RecomputeStage(id, task.step % versions_);
    Operation made = kNoOperation;
    for (int layer = device.layers().last; layer >= device.layers().first; --layer) {
      made = device.Backward(id, layer, first, last, task.step % versions_, arrival);
    }
    if (stage > 0) gradients_[{id, stage - 1}] = device.Send(device.layers().first, made);
    if (last) Finish(stage, task.step, made);
  }

  // Updates a stage's blocks. A tied block that several stages use waits for all of them, which
  // then exchange its gradients.
  void Finish(size_t stage, int step, Operation backward) {
    DeviceProgram& device = simulation_.devices[stage];
    for (int block : device.blocks()) {
      std::vector<DeviceProgram*> users;
      std::vector<Operation> after;
      bool all = true;
      for (size_t other = 0; other < orders_.size(); ++other) {
        if (!simulation_.devices[other].uses(block)) continue;
        users.push_back(&simulation_.devices[other]);
        all = all && done_[{step, other}] == microbatches_;
      }
      if (!all) continue;
      after.push_back(backward);
      const Bytes whole =
          simulation_.costs.model().blocks[static_cast<size_t>(block)].gradient_bytes;
      if (users.size() > 1) {
        for (DeviceProgram* user : users) user->Reduce(block, whole, after);
      }
      for (DeviceProgram* user : users) {
        // Of two versions, the step's own is what nothing works with any more.
        user->Update(block, (step + 1) % versions_, step % versions_);
      }
    }
  }

  const std::vector<StageOrder>& orders_;
  const int microbatches_, versions_;
  Simulation& simulation_;
  std::vector<size_t> next_;  // by stage
  // When a microbatch's input, or its output's gradient, is there: by microbatch and stage.
  std::map<std::pair<int, size_t>, Operation> inputs_, gradients_;
  std::map<std::pair<int, size_t>, int> done_;  // backwards, by step and stage
};

}  // namespace

void RunPipeline(const std::vector<StageOrder>& orders, int microbatches, int weight_versions,
                 Simulation* simulation) {
  Pipeline pipeline(orders, microbatches, weight_versions, simulation);
  const int steps = orders.front().tasks.back().step + 1;
  for (int step = 0; step < steps; ++step) {
    simulation->timeline.BeginStep();
    pipeline.RunStep(step);
  }
}

}  // namespace harmony::baselines
