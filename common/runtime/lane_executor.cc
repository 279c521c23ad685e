#include "common/runtime/lane_executor.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "common/base/status.h"

namespace harmony {
namespace {

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

struct LaneExecutor::LaneState {
  explicit LaneState(LaneDefinition definition) : definition(std::move(definition)) {}

  const LaneDefinition definition;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Command> queue;   // mutex
  bool running = false;        // mutex; a command is between its waits and its signal
  bool failed = false;         // mutex; until the next generation
  bool stopping = false;       // mutex
  uint64_t last_enqueued = 0;  // mutex
  uint32_t generation = 0;     // mutex; written only while the lane is idle
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
      std::lock_guard lock(lane->mutex);
      lane->stopping = true;
    }
    lane->changed.notify_all();
    lane->thread.join();
  }
  {
    std::lock_guard lock(report_mutex_);
    stopping_ = true;
  }
  report_ready_.notify_all();
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
    std::lock_guard lock(lane->mutex);
    lane->generation = generation;
    lane->last_enqueued = 0;
    lane->failed = false;
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

void LaneExecutor::Enqueue(uint32_t generation, std::vector<Command> commands) {
  if (generation != generation_.load()) {
    dropped_.fetch_add(commands.size(), std::memory_order_relaxed);
    return;
  }
  for (Command& command : commands) {
    const uint64_t value = command.header.signal_value;
    LaneState* lane = FindLane(command.header.lane);
    if (lane == nullptr) {
      const absl::Status failure = absl::InternalError(
          absl::StrCat("command ", command.header.id, " is for lane ", command.header.lane,
                       ", which this process does not have"));
      for (auto& each : lanes_) FailLane(each.get(), value, failure);
      return;
    }
    uint64_t expected = 0;
    {
      std::lock_guard lock(lane->mutex);
      expected = lane->last_enqueued + 1;
      if (value == expected) {
        lane->last_enqueued = value;
        if (!lane->failed) lane->queue.push_back(std::move(command));
      }
    }
    if (value == expected) {
      lane->changed.notify_all();
    } else {
      FailLane(lane, value,
               absl::InternalError(absl::StrCat("lane ", lane->definition.name, ": command value ",
                                                value, " where ", expected, " was due")));
    }
  }
}

void LaneExecutor::Quiesce() {
  cancelled_.store(true);
  generation_.store(0);
  for (auto& lane : lanes_) {
    std::unique_lock lock(lane->mutex);
    lane->queue.clear();
    lane->changed.wait(lock, [&] { return !lane->running; });
  }
  std::unique_lock lock(report_mutex_);
  pending_.clear();
  report_idle_.wait(lock, [&] { return !reporting_; });
}

void LaneExecutor::RunLane(LaneState* lane) {
  NameThread(lane->definition.name);
  std::unique_lock lock(lane->mutex);
  while (true) {
    lane->changed.wait(lock, [&] { return lane->stopping || !lane->queue.empty(); });
    if (lane->stopping) return;
    const Command command = std::move(lane->queue.front());
    lane->queue.pop_front();
    lane->running = true;
    lock.unlock();
    RunCommand(lane, command);
    lock.lock();
    lane->running = false;
    lane->changed.notify_all();
  }
}

// `lane->generation` is read without its lock here: it does not change while the lane runs.
void LaneExecutor::RunCommand(LaneState* lane, const Command& command) {
  const CommandHeader& header = command.header;
  for (const SemaphoreWait& wait : header.waits) {
    const absl::Status status =
        semaphores_->Wait(lane->generation, wait.semaphore, wait.value, cancelled_);
    // The generation is over: what is left of the queue will be dropped by Quiesce. Running on
    // would act on waits that nobody satisfied.
    if (absl::IsAborted(status)) return FailLane(lane, header.signal_value, absl::OkStatus());
    if (!status.ok()) return FailLane(lane, header.signal_value, status);
  }
  if (cancelled_.load()) return;
  const Nanos start = options_.clock->Now();
  const absl::Status status = lane->definition.body(command);
  const Nanos end = options_.clock->Now();
  if (cancelled_.load()) return;
  if (!status.ok()) return FailLane(lane, header.signal_value, status);
  semaphores_->Signal(lane->generation, header.lane, header.signal_value);
  ReportCompleted(*lane, {header.signal_value, start, end});
}

// Stops the lane until the next generation; an OK status stops it without a report.
void LaneExecutor::FailLane(LaneState* lane, uint64_t value, const absl::Status& failure) {
  {
    std::lock_guard lock(lane->mutex);
    lane->queue.clear();
    if (lane->failed) return;
    lane->failed = true;
  }
  if (!failure.ok()) ReportFailure(*lane, value, failure);
}

LaneReport& LaneExecutor::PendingReport(const LaneState& lane) {
  for (LaneReport& report : pending_) {
    if (report.lane == lane.definition.lane) return report;
  }
  LaneReport& report = pending_.emplace_back();
  report.lane = lane.definition.lane;
  report.generation = lane.generation;  // does not change while the lane runs
  return report;
}

void LaneExecutor::ReportCompleted(const LaneState& lane, const CompletedCommand& completed) {
  {
    std::lock_guard lock(report_mutex_);
    PendingReport(lane).completed.push_back(completed);
  }
  report_ready_.notify_one();
}

void LaneExecutor::ReportFailure(const LaneState& lane, uint64_t value,
                                 const absl::Status& failure) {
  {
    std::lock_guard lock(report_mutex_);
    LaneReport& report = PendingReport(lane);
    report.failure = failure;
    report.failed_value = value;
  }
  report_ready_.notify_one();
}

void LaneExecutor::RunReporter() {
  NameThread("lane-reports");
  Nanos next_report;  // not before; on options_.clock
  std::unique_lock lock(report_mutex_);
  while (true) {
    report_ready_.wait(lock, [&] { return stopping_ || !pending_.empty(); });
    if (stopping_) return;
    const Nanos early = next_report - options_.clock->Now();
    if (early > Nanos(0)) {
      report_ready_.wait_for(lock, std::chrono::nanoseconds(early.count()),
                             [&] { return stopping_; });
      if (stopping_) return;
    }
    std::vector<LaneReport> reports = std::move(pending_);
    pending_.clear();
    if (reports.empty()) continue;  // dropped by Quiesce meanwhile
    reporting_ = true;
    lock.unlock();
    sink_(std::move(reports));
    next_report = options_.clock->Now() + options_.report_interval;
    lock.lock();
    reporting_ = false;
    report_idle_.notify_all();
  }
}

}  // namespace harmony
