#include "bench/virtual_trainer/lane_threads.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/runtime/pacer.h"

namespace harmony::bench {
namespace {

using baselines::Operation;
using baselines::Timeline;

class Lanes {
 public:
  Lanes(const Timeline& timeline, const LaneOptions& options,
        const std::function<absl::Status(Operation)>& carry_out)
      : timeline_(timeline),
        options_(options),
        carry_out_(carry_out),
        lanes_(static_cast<size_t>(timeline.lanes().size())),
        successors_(static_cast<size_t>(timeline.num_operations())),
        waits_(successors_.size()),
        step_end_(static_cast<size_t>(timeline.num_steps())) {
    int groups = 0;
    for (int group : options.group_of) groups = std::max(groups, group + 1);
    groups_.resize(static_cast<size_t>(groups));
    for (Operation operation = 0; operation < timeline.num_operations(); ++operation) {
      lanes_[static_cast<size_t>(timeline.LaneOf(operation))].operations.push_back(operation);
      for (Operation wait : timeline.WaitsOf(operation)) {
        successors_[static_cast<size_t>(wait)].push_back(operation);
        ++waits_[static_cast<size_t>(operation)];
      }
      if (const int group = GroupOf(operation); group >= 0) {
        ++groups_[static_cast<size_t>(group)].size;
      }
    }
    MakePacers();
  }

  absl::StatusOr<LaneTimes> Run() {
    const Nanos begin = MonotonicClock().Now();
    std::vector<std::thread> threads;
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (!lanes_[lane].operations.empty()) threads.emplace_back([this, lane] { RunLane(lane); });
    }
    for (std::thread& thread : threads) thread.join();
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    LaneTimes times;
    for (Nanos end : step_end_) times.step_end.push_back(end - begin);
    for (const std::unique_ptr<runtime::Pacer>& pacer : pacers_) {
      times.paced += pacer == nullptr ? 0 : pacer->paced();
      times.overruns += pacer == nullptr ? 0 : pacer->overruns();
    }
    return times;
  }

 private:
  struct Lane {
    std::vector<Operation> operations;
    CondVar changed;
  };
  struct Group {
    int size = 0, begun = 0, done = 0;
  };

  int GroupOf(Operation operation) const {
    const auto at = static_cast<size_t>(operation);
    return at < options_.group_of.size() ? options_.group_of[at] : -1;
  }

  void MakePacers() {
    const std::vector<int>& resource = timeline_.resources().of_lane;
    pacers_.resize(lanes_.size());
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      auto& pacer = pacers_[static_cast<size_t>(resource[lane])];
      if (pacer != nullptr) continue;
      const bool compute =
          timeline_.lanes().LaneAt(static_cast<int>(lane)).kind == command::LaneKind::kCompute;
      pacer = std::make_unique<runtime::Pacer>(compute ? runtime::PacedWork::kCompute
                                                       : runtime::PacedWork::kCopy);
    }
  }

  void RunLane(size_t lane) {
    runtime::Pacer& pacer = *pacers_[static_cast<size_t>(timeline_.resources().of_lane[lane])];
    for (Operation operation : lanes_[lane].operations) {
      if (!AwaitBegin(lane, operation)) return;
      const Nanos duration = timeline_.DurationOf(operation);
      const bool paced = options_.paced && duration.count() > 0;
      const runtime::Pacer::Reservation reservation =
          paced ? pacer.Reserve(duration) : runtime::Pacer::Reservation{};
      const absl::Status status = carry_out_(operation);
      if (!status.ok()) return Fail(status);
      if (!AwaitOthers(lane, operation)) return;
      if (paced) pacer.FinishAt(reservation);
      End(operation);
    }
  }

  // False: something has failed.
  bool AwaitBegin(size_t lane, Operation operation) {
    MutexLock lock(mutex_);
    while (failure_.ok() && waits_[static_cast<size_t>(operation)] > 0) {
      lanes_[lane].changed.Wait(mutex_);
    }
    return AwaitGroup(lane, operation, &Group::begun);
  }
  bool AwaitOthers(size_t lane, Operation operation) {
    MutexLock lock(mutex_);
    return AwaitGroup(lane, operation, &Group::done);
  }
  bool AwaitGroup(size_t lane, Operation operation, int Group::*arrived)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (const int number = GroupOf(operation); number >= 0 && failure_.ok()) {
      Group& group = groups_[static_cast<size_t>(number)];
      if (++(group.*arrived) == group.size) WakeAll();
      while (failure_.ok() && group.*arrived < group.size) lanes_[lane].changed.Wait(mutex_);
    }
    return failure_.ok();
  }

  void End(Operation operation) {
    const Nanos now = MonotonicClock().Now();
    MutexLock lock(mutex_);
    Nanos& step_end = step_end_[static_cast<size_t>(timeline_.StepOf(operation))];
    step_end = std::max(step_end, now);
    for (Operation next : successors_[static_cast<size_t>(operation)]) {
      if (--waits_[static_cast<size_t>(next)] > 0) continue;
      lanes_[static_cast<size_t>(timeline_.LaneOf(next))].changed.NotifyAll();
    }
  }

  void Fail(const absl::Status& status) {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
    WakeAll();
  }

  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Lane& lane : lanes_) lane.changed.NotifyAll();
  }

  const Timeline& timeline_;
  const LaneOptions& options_;
  const std::function<absl::Status(Operation)>& carry_out_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<runtime::Pacer>> pacers_;  // by resource
  std::vector<std::vector<Operation>> successors_;       // by operation
  Mutex mutex_;
  std::vector<int> waits_ ABSL_GUARDED_BY(mutex_);  // that have not ended, by operation
  std::vector<Group> groups_ ABSL_GUARDED_BY(mutex_);
  std::vector<Nanos> step_end_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<LaneTimes> RunOnThreads(const Timeline& timeline, const LaneOptions& options,
                                       const std::function<absl::Status(Operation)>& carry_out) {
  return Lanes(timeline, options, carry_out).Run();
}

}  // namespace harmony::bench
