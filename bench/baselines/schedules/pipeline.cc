// What the stages of a pipeline do with their tasks, and what they send each other.

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

class Pipeline {
 public:
  Pipeline(const std::vector<Stage>& stages, const std::vector<DeviceOrder>& orders,
           int microbatches, int weight_versions, Simulation* simulation)
      : stages_(stages),
        orders_(orders),
        microbatches_(microbatches),
        versions_(weight_versions),
        simulation_(*simulation),
        next_(orders.size(), 0) {
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      stage_of_.insert(stage_of_.end(), static_cast<size_t>(stages[stage].replicas), stage);
    }
    for (const DeviceOrder& order : orders) {
      backwards_.push_back(
          static_cast<int>(std::count_if(order.begin(), order.end(), [](const StageTask& task) {
            return !task.forward && task.step == 0;
          })));
    }
  }

  // Adds the tasks of a step: each device's next one as soon as what it waits for has been added.
  void RunStep(int step) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t device = 0; device < orders_.size(); ++device) {
        while (next_[device] < orders_[device].size() &&
               orders_[device][next_[device]].step <= step && TryNext(device)) {
          moved = true;
        }
      }
    }
  }

 private:
  int IdOf(const StageTask& task) const { return task.step * microbatches_ + task.microbatch; }

  bool TryNext(size_t at) {
    const StageTask& task = orders_[at][next_[at]];
    const int id = IdOf(task);
    const size_t stage = stage_of_[at];
    const bool last_stage = stage + 1 == stages_.size();
    const auto input = inputs_.find({id, stage});
    const auto gradient = gradients_.find({id, stage});
    if (stage > 0 && input == inputs_.end()) return false;
    if (!task.forward && !last_stage && gradient == gradients_.end()) return false;
    const Operation arrival = stage > 0 ? input->second : kNoOperation;
    if (task.forward) {
      const StageTask& next = orders_[at][next_[at] + 1];  // backwards end each list
      Forward(at, task, arrival, /*keeps=*/!next.forward && IdOf(next) == id);
    } else {
      Backward(at, task, last_stage ? arrival : gradient->second);
    }
    ++next_[at];
    return true;
  }

  void Forward(size_t at, const StageTask& task, Operation arrival, bool keeps) {
    DeviceProgram& device = simulation_.devices[at];
    const int id = IdOf(task), head = simulation_.costs.num_layers() - 1;
    Operation made = kNoOperation;
    for (int layer = device.layers().first; layer <= std::min(device.layers().last, head - 1);
         ++layer) {
      made = device.Forward(id, layer, task.step % versions_, arrival, keeps);
    }
    const size_t stage = stage_of_[at];
    if (stage + 1 < stages_.size()) {
      inputs_[{id, stage + 1}] = device.Send(device.layers().last + 1, made);
    }
  }

  void Backward(size_t at, const StageTask& task, Operation arrival) {
    DeviceProgram& device = simulation_.devices[at];
    const int id = IdOf(task);
    const int done = ++done_[{task.step, at}];
    const bool first = done == 1, last = done == backwards_[at];
    device.RecomputeStage(id, task.step % versions_);
    Operation made = kNoOperation;
    for (int layer = device.layers().last; layer >= device.layers().first; --layer) {
      made = device.Backward(id, layer, first, last, task.step % versions_, arrival);
      if (last) added_[{task.step, at, layer}] = made;
    }
    const size_t stage = stage_of_[at];
    if (stage > 0) gradients_[{id, stage - 1}] = device.Send(device.layers().first, made);
    if (last) Finish(device, task.step);
  }

  // A device has added its last gradients of a step. Blocks that other devices have, too, those of
  // a replicated stage and tied ones, wait for all of them.
  void Finish(const DeviceProgram& device, int step) {
    std::vector<int> ready;
    for (int block : device.blocks()) {
      const std::vector<size_t> users = UsersOf(block);
      if (std::all_of(users.begin(), users.end(), [&](size_t user) {
            return done_[{step, user}] == backwards_[user];
          })) {
        ready.push_back(block);
      }
    }
    // Gradients of the last layers are there first.
    for (size_t i = ready.size(); i-- > 0;) Reduce(ready[i], step);
    for (int block : ready) {
      for (size_t user : UsersOf(block)) {
        // Of two versions, the step's own is what nothing works with any more.
        simulation_.devices[user].Update(block, (step + 1) % versions_, step % versions_);
      }
    }
  }

  void Reduce(int block, int step) {
    const std::vector<size_t> users = UsersOf(block);
    const auto count = static_cast<int64_t>(users.size());
    if (count == 1) return;
    std::vector<Operation> after;
    for (size_t user : users) {
      after.push_back(added_[{step, user, simulation_.devices[user].CompletesGradient(block)}]);
    }
    const Bytes whole = simulation_.costs.model().blocks[static_cast<size_t>(block)].gradient_bytes;
    for (size_t user : users) {
      simulation_.devices[user].Reduce(block, Bytes(2 * (count - 1) * whole.count() / count),
                                       after);
    }
  }

  std::vector<size_t> UsersOf(int block) const {
    std::vector<size_t> users;
    for (size_t device = 0; device < orders_.size(); ++device) {
      if (simulation_.devices[device].uses(block)) users.push_back(device);
    }
    return users;
  }

  const std::vector<Stage>& stages_;
  const std::vector<DeviceOrder>& orders_;
  const int microbatches_, versions_;
  Simulation& simulation_;
  std::vector<size_t> stage_of_;  // by device
  std::vector<int> backwards_;    // of a step, by device
  std::vector<size_t> next_;      // by device
  // When a microbatch's input, or its output's gradient, is there: by microbatch and stage.
  std::map<std::pair<int, size_t>, Operation> inputs_, gradients_;
  std::map<std::pair<int, size_t>, int> done_;  // backwards, by step and device
  // The last backward of a layer: by step, device and layer.
  std::map<std::tuple<int, size_t, int>, Operation> added_;
};

}  // namespace

void RunPipeline(const std::vector<Stage>& stages, const std::vector<DeviceOrder>& orders,
                 int microbatches, int weight_versions, Simulation* simulation) {
  Pipeline pipeline(stages, orders, microbatches, weight_versions, simulation);
  const int steps = orders.front().back().step + 1;
  for (int step = 0; step < steps; ++step) {
    simulation->timeline.BeginStep();
    pipeline.RunStep(step);
  }
}

}  // namespace harmony::baselines
