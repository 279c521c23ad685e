#include "common/runtime/lane_executor.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "common/base/status.h"
#include "common/command/lane_queue.h"

namespace harmony::runtime {
namespace {

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

struct LaneExecutor::LaneState {
  explicit LaneState(LaneDefinition definition)
      : definition(std::move(definition)), queue(static_cast<int>(this->definition.lane)) {}

  const LaneDefinition definition;
  Mutex mutex;
  CondVar changed;
  command::LaneQueue queue ABSL_GUARDED_BY(mutex);  // a running command is read without it
  // When what waits in the queue came. Dropped commands stay until the next generation.
  std::deque<Nanos> received ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::thread thread;
};

LaneExecutor::LaneExecutor(std::vector<LaneDefinition> lanes, LaneSemaphores* semaphores, Sink sink,
                           Options options)
    : semaphores_(semaphores), sink_(std::move(sink)), options_(options) {
  for (LaneDefinition& definition : lanes) {
    lanes_.push_back(std::make_unique<LaneState>(std::move(definition)));
  }
  reporter_ = std::thread([this] { RunReporter(); });
  for (auto& lane : lanes_) {
    lane->thread = std::thread([this, state = lane.get()] { RunLane(state); });
  }
}

LaneExecutor::~LaneExecutor() {
  Quiesce();
  for (auto& lane : lanes_) {
    {
      MutexLock lock(lane->mutex);
      lane->stopping = true;
    }
    lane->changed.NotifyAll();
    lane->thread.join();
  }
  {
    MutexLock lock(report_mutex_);
    stopping_ = true;
  }
  report_ready_.NotifyAll();
  reporter_.join();
}

absl::Status LaneExecutor::StartGeneration(uint32_t generation) {
  if (!cancelled_.load()) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", generation, " starts while ", last_generation_, " still runs"));
  }
  if (generation <= last_generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", generation, " is not above the last one, ", last_generation_));
  }
  last_generation_ = generation;
  for (auto& lane : lanes_) {
    MutexLock lock(lane->mutex);
    HARMONY_RETURN_IF_ERROR(lane->queue.Start(generation));
    lane->received.clear();
  }
  generation_.store(generation);
  cancelled_.store(false);
  return absl::OkStatus();
}

LaneExecutor::LaneState* LaneExecutor::FindLane(uint32_t index) {
  for (auto& lane : lanes_) {
    if (lane->definition.lane == index) return lane.get();
  }
  return nullptr;
}

void LaneExecutor::Enqueue(uint32_t generation, std::vector<command::Command> commands) {
  if (generation != generation_.load()) return;
  const Nanos now = options_.clock->Now();
  for (command::Command& command : commands) {
    const uint64_t value = command.header.signal_value;
    LaneState* lane = FindLane(command.header.lane);
    if (lane == nullptr) {
      const absl::Status failure = absl::InternalError(
          absl::StrCat("command ", command.header.id, " is for lane ", command.header.lane,
                       ", which this process does not have"));
      for (auto& each : lanes_) FailLane(each.get(), value, failure);
      return;
    }
    absl::Status taken;
    {
      MutexLock lock(lane->mutex);
      taken = lane->queue.Push(generation, std::move(command));
      if (taken.ok()) lane->received.push_back(now);
    }
    if (taken.ok()) {
      lane->changed.NotifyAll();
    } else if (!absl::IsAborted(taken)) {  // it is where the lane has failed
      FailLane(lane, value, taken);
    }
  }
}

void LaneExecutor::Quiesce() {
  Cancel();
  generation_.store(0);
  for (auto& lane : lanes_) {
    MutexLock lock(lane->mutex);
    lane->queue.Quiesce();
    while (lane->queue.running()) lane->changed.Wait(lane->mutex);
  }
  MutexLock lock(report_mutex_);
  pending_.clear();
  while (reporting_) report_idle_.Wait(report_mutex_);
}

void LaneExecutor::RunLane(LaneState* lane) {
  NameThread(lane->definition.name);
  MutexLock lock(lane->mutex);
  while (true) {
    while (!lane->stopping && lane->queue.Head() == nullptr) lane->changed.Wait(lane->mutex);
    if (lane->stopping) return;
    const uint32_t generation = lane->queue.generation();
    lane->queue.BeginHead();
    const command::Command& command = *lane->queue.Running();
    CompletedCommand completed;
    completed.received = lane->received.front();
    lane->received.pop_front();
    lock.Unlock();
    bool over = false;
    const absl::Status status = RunCommand(*lane, generation, command, &completed, &over);
    lock.Lock();
    if (!status.ok()) lane->queue.Quiesce();  // nothing behind it may run
    const uint64_t due = command.header.signal_value;
    const uint64_t value = lane->queue.FinishHead();
    if (value != 0) {
      // Under the lock: once Quiesce has seen the lane idle, nothing is signalled any more.
      semaphores_->Signal(generation, lane->definition.lane, value);
      ReportCompleted(lane->definition.lane, generation, completed);
    } else if (!status.ok() && !over) {
      ReportFailure(lane->definition.lane, generation, due, status);
    }
    lane->changed.NotifyAll();
  }
}

// Sets `over` when the error says no more than that the generation is over.
absl::Status LaneExecutor::RunCommand(const LaneState& lane, uint32_t generation,
                                      const command::Command& command, CompletedCommand* completed,
                                      bool* over) {
  const auto quiesced = [this, over] {
    // A wait on the way may have found so before this program was told.
    *over = *over || cancelled_.load();
    return *over;
  };
  const AwaitSemaphore await = [this, generation, over](const command::SemaphoreWait& wait) {
    absl::Status waited = semaphores_->Wait(generation, wait.semaphore, wait.value, cancelled_);
    *over = absl::IsAborted(waited);
    return waited;
  };
  for (const command::SemaphoreWait& wait : command.header.waits) {
    HARMONY_RETURN_IF_ERROR(await(wait));
  }
  if (quiesced()) return absl::AbortedError("quiesced");
  completed->value = command.header.signal_value;
  completed->start = options_.clock->Now();
  absl::Status status = lane.definition.body(command, await);
  completed->end = options_.clock->Now();
  // Whatever it came to, nobody wants it any more.
  if (quiesced()) return absl::AbortedError("quiesced");
  return status;
}

// Stops the lane until the next generation.
void LaneExecutor::FailLane(LaneState* lane, uint64_t value, const absl::Status& failure) {
  uint32_t generation = 0;
  {
    MutexLock lock(lane->mutex);
    if (lane->queue.quiesced()) return;
    lane->queue.Quiesce();
    generation = lane->queue.generation();
  }
  ReportFailure(lane->definition.lane, generation, value, failure);
}

LaneReport& LaneExecutor::PendingReport(uint32_t lane, uint32_t generation) {
  for (LaneReport& report : pending_) {
    if (report.lane == lane) return report;
  }
  LaneReport& report = pending_.emplace_back();
  report.lane = lane;
  report.generation = generation;
  return report;
}

void LaneExecutor::ReportCompleted(uint32_t lane, uint32_t generation,
                                   const CompletedCommand& completed) {
  {
    MutexLock lock(report_mutex_);
    PendingReport(lane, generation).completed.push_back(completed);
  }
  report_ready_.NotifyOne();
}

void LaneExecutor::ReportFailure(uint32_t lane, uint32_t generation, uint64_t value,
                                 const absl::Status& failure) {
  {
    MutexLock lock(report_mutex_);
    LaneReport& report = PendingReport(lane, generation);
    report.failure = failure;
    report.failed_value = value;
  }
  report_ready_.NotifyOne();
}

void LaneExecutor::RunReporter() {
  NameThread("lane-reports");
  Nanos next_report;  // not before; on options_.clock
  MutexLock lock(report_mutex_);
  while (true) {
    while (!stopping_ && pending_.empty()) report_ready_.Wait(report_mutex_);
    if (stopping_) return;
    const Nanos early = next_report - options_.clock->Now();
    if (early > Nanos(0)) {
      const CondVar::Time due = CondVar::After(std::chrono::nanoseconds(early.count()));
      while (!stopping_ && report_ready_.WaitUntil(report_mutex_, due)) {
      }
      if (stopping_) return;
    }
    std::vector<LaneReport> reports = std::move(pending_);
    pending_.clear();
    if (reports.empty()) continue;  // dropped by Quiesce meanwhile
    reporting_ = true;
    lock.Unlock();
    sink_(std::move(reports));
    next_report = options_.clock->Now() + options_.report_interval;
    lock.Lock();
    reporting_ = false;
    report_idle_.NotifyAll();
  }
}

}  // namespace harmony::runtime
