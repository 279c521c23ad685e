#include "tests/sim/simulator/sim_lanes.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace harmony::sim {

SimLanes::SimLanes(const model::ModelSpec& model, const plan::Plan& plan,
                   const dispatch::CostModel& costs, bool jitter, SimWorld& world,
                   CounterRandom& random, std::vector<ExecutedCommand>* timeline, Ends ends)
    : model_(model),
      gradient_times_(model),
      costs_(costs),
      jitter_(jitter),
      world_(world),
      random_(random),
      timeline_(timeline),
      ends_(std::move(ends)),
      table_(static_cast<int>(plan.devices.size())),
      resources_(plan::ResourcesOfLanes(plan, costs.Cores())) {
  for (int lane = 0; lane < table_.size(); ++lane) lanes_.emplace_back(lane);
}

// Of another generation: dropped, not an error of anyone.
absl::Status SimLanes::Push(int lane, uint32_t generation, command::Command command) {
  absl::Status status = lanes_[lane].queue.Push(generation, std::move(command));
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

void SimLanes::Die(int lane, Nanos now) {
  Lane& dead = lanes_[lane];
  if (const command::Command* running = dead.queue.Running()) world_.Abort(*running);
  dead.queue = command::LaneQueue(lane);
  dead.stopped = false;
  dead.gradient_waits = 0;
  resources_.Free(lane, now);
  ++dead.stamp;
}

void SimLanes::Quiesce(int lane, Nanos now) {
  Lane& own = lanes_[lane];
  own.queue.Quiesce();
  if (own.gradient_waits > 0) ends_(now, lane, ++own.stamp);
}

void SimLanes::PrepareBank(uint32_t generation) {
  bank_ = generation;
  for (Lane& lane : lanes_) lane.semaphore = 0;
}

absl::Status SimLanes::TryStart(int lane, Nanos now, uint32_t word) {
  Lane& own = lanes_[lane];
  const command::Command* head = own.queue.Head();
  if (head == nullptr || own.stopped) return absl::OkStatus();
  for (const command::SemaphoreWait& wait : head->header.waits) {
    if (lanes_[wait.semaphore].semaphore < wait.value) return absl::OkStatus();
  }
  // One that waited when the word was raised was told so; one that was about to begin was not.
  const bool stale = own.queue.generation() != word;
  if (stale && random_.Below(2) == 0) return absl::OkStatus();
  stale_starts_ += stale ? 1 : 0;
  if (absl::Status status = world_.Start(*head); !status.ok()) {
    return WithContext(status, DebugString(*head));
  }
  Nanos duration = costs_.Duration(*head);
  if (jitter_) {
    duration = Nanos(static_cast<int64_t>(static_cast<double>(duration.count()) *
                                          (0.5 + 1.5 * random_.NextDouble())));
  }
  own.end = resources_.Start(lane, now, duration).end;
  if (timeline_ != nullptr) {
    own.entry = timeline_->size();
    timeline_->push_back({lane, now, own.end, *head});
  }
  own.queue.BeginHead();
  const auto* task = std::get_if<command::ComputeTask>(&own.queue.Running()->body);
  own.gradient_waits = task == nullptr ? 0 : task->gradient_waits.size();
  own.stall.reset();
  if (own.gradient_waits > 0) {
    own.stall.emplace(gradient_times_, BackwardTaskOf(*task), task->layers, task->awaited,
                      own.end - duration, duration);
  }
  return GoOn(lane, now);
}

absl::Status SimLanes::GoOn(int lane, Nanos now) {
  Lane& own = lanes_[lane];
  const command::Command& running = *own.queue.Running();
  while (own.gradient_waits > 0) {
    const size_t i = own.gradient_waits - 1;
    const auto& task = std::get<command::ComputeTask>(running.body);
    const command::SemaphoreWait& wait = task.gradient_waits[i];
    if (lanes_[wait.semaphore].semaphore < wait.value) return absl::OkStatus();
    if (absl::Status status = world_.StartGradient(running, i); !status.ok()) {
      return WithContext(status, DebugString(running));
    }
    own.stall->FreeAt(model_.references[task.gradients[i].reference].layer, now);
    own.gradient_waits = i;
  }
  if (own.stall) own.end += own.stall->total();
  if (timeline_ != nullptr) (*timeline_)[own.entry].end = own.end;
  ends_(own.end, lane, ++own.stamp);
  return absl::OkStatus();
}

absl::Status SimLanes::StartHeads(Nanos now, uint32_t word) {
  signalled_ = false;
  for (int lane = 0; lane < table_.size(); ++lane) {
    const Lane& own = lanes_[lane];
    const bool goes_on = own.gradient_waits > 0 && !own.stopped && !own.queue.quiesced();
    if (goes_on) HARMONY_RETURN_IF_ERROR(GoOn(lane, now));
  }
  std::vector<std::pair<uint64_t, int>> heads;
  for (int lane = 0; lane < table_.size(); ++lane) {
    if (const auto* head = lanes_[lane].queue.Head()) heads.emplace_back(head->header.id, lane);
  }
  std::sort(heads.begin(), heads.end());
  for (const auto& [id, lane] : heads) HARMONY_RETURN_IF_ERROR(TryStart(lane, now, word));
  return absl::OkStatus();
}

const command::Command* SimLanes::Ending(int lane, uint64_t stamp) const {
  return lanes_[lane].stamp == stamp ? lanes_[lane].queue.Running() : nullptr;
}

absl::StatusOr<uint64_t> SimLanes::Complete(int lane) {
  Lane& own = lanes_[lane];
  // The last command of a lane that was told to be quiet: its commit may or may not happen. One
  // that waited on its way is not done.
  if (std::exchange(own.gradient_waits, 0) > 0 || (own.queue.quiesced() && random_.Below(2) == 0)) {
    world_.Abort(*own.queue.Running());
  } else if (absl::Status status = world_.Complete(*own.queue.Running()); !status.ok()) {
    return WithContext(status, DebugString(*own.queue.Running()));
  }
  const uint64_t value = own.queue.FinishHead();
  if (value != 0 && own.queue.generation() == bank_) own.semaphore = value;
  signalled_ = true;
  return value;
}

void SimLanes::Fail(int lane) {
  Lane& own = lanes_[lane];
  world_.Abort(*own.queue.Running());
  own.queue.Quiesce();
  own.queue.FinishHead();
}

}  // namespace harmony::sim
