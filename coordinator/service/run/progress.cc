#include "coordinator/service/run/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/arena_layout.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::service {
namespace {

// However short a step is, watchers get no more than one snapshot in this time.
constexpr Nanos kShortestInterval = Millis(20);

void FillSwap(const SwapTotals& totals, v1::SwapBytes* swap) {
  const auto of = [&](command::TrafficClass traffic) { return totals[static_cast<int>(traffic)]; };
  swap->set_weights(of(command::TrafficClass::kWeights));
  swap->set_gradients(of(command::TrafficClass::kGradients));
  swap->set_stash(of(command::TrafficClass::kStash));
  swap->set_boundary_commit(of(command::TrafficClass::kBoundaryCommit));
  swap->set_boundary(of(command::TrafficClass::kBoundary));
  swap->set_tokens(of(command::TrafficClass::kTokens));
  swap->set_loss(of(command::TrafficClass::kLoss));
  swap->set_recovery(of(command::TrafficClass::kRecovery));
}

void FillMinimum(const plan::MinimalSwap& minimal, v1::SwapBytes* swap) {
  swap->set_weights(minimal.weights.count());
  swap->set_gradients(minimal.gradients.count());
  swap->set_stash(minimal.stash.count());
  swap->set_boundary_commit(minimal.boundary_commit.count());
  swap->set_tokens(minimal.tokens.count());
}

constexpr size_t kMostWaiting = 2;  // snapshots of one watcher

double Share(Nanos part, Nanos whole) {
  if (whole.count() <= 0) return 0;
  return std::clamp(static_cast<double>(part.count()) / static_cast<double>(whole.count()), 0.0,
                    1.0);
}

}  // namespace

ProgressStream::ProgressStream() = default;
ProgressStream::~ProgressStream() = default;

void ProgressStream::Push(v1::Progress progress, bool last) {
  MutexLock lock(mutex_);
  queue_.push_back(std::make_unique<v1::Progress>(std::move(progress)));
  ended_ = last;
  changed_.NotifyAll();
}

std::unique_ptr<v1::Progress> ProgressStream::Take(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  const CondVar::Time deadline = CondVar::After(patience);
  while (queue_.empty() && !ended_ && changed_.WaitUntil(mutex_, deadline)) {
  }
  if (queue_.empty()) return nullptr;
  std::unique_ptr<v1::Progress> progress = std::move(queue_.front());
  queue_.pop_front();
  return progress;
}

bool ProgressStream::ended() {
  MutexLock lock(mutex_);
  return ended_ && queue_.empty();
}

bool ProgressStream::full() {
  MutexLock lock(mutex_);
  return queue_.size() >= kMostWaiting;
}

void ProgressStream::Abandon() {
  MutexLock lock(mutex_);
  abandoned_ = true;
}

bool ProgressStream::abandoned() {
  MutexLock lock(mutex_);
  return abandoned_;
}

bool Watcher::Due(Nanos now) const {
  const Nanos pause = hurry_ ? std::min(kShortestInterval, interval_) : interval_;
  return now - last_sent_ >= pause && !stream_->full();
}

void Watcher::Send(const store::JobRecord& record, const JobRun* run,
                   const std::vector<std::string>& messages, Members* members, Bytes host_capacity,
                   Nanos now) {
  v1::Progress progress;
  FillJob(record, progress.mutable_job());
  progress.set_step(record.completed_steps);
  progress.set_loss(record.last_loss);
  progress.set_host_capacity(host_capacity.count());
  for (; messages_sent_ < messages.size(); ++messages_sent_) {
    progress.add_messages(messages[messages_sent_]);
  }
  if (run != nullptr) FillRun(*run, members, now, &progress);
  last_run_ = run;
  last_sent_ = now;
  hurry_ = false;
  done_ = store::IsEnded(record.state);
  stream_->Push(std::move(progress), done_);
}

void Watcher::FillRun(const JobRun& run, Members* members, Nanos now, v1::Progress* progress) {
  if (&run != last_run_) last_usage_.assign(run.monitor().num_lanes(), {});
  progress->set_generation(run.runner().generation());
  if (const auto& step = run.steps().last_step()) {
    progress->set_grad_norm(step->grad_norm.value_or(0));
    progress->set_learning_rate(step->learning_rate);
    progress->set_tokens_per_second(step->tokens_per_second);
    progress->set_tokens_per_sample(run.setup().plan.sequence_length);
    FillSwap(step->swap, progress->mutable_swap_last_step());
  }
  progress->set_seconds_per_step(run.steps().recent_seconds_per_step());
  if (run.steps().forecast()) {
    progress->set_predicted_seconds_per_step(run.steps().forecast()->step_seconds);
    progress->set_drift(run.steps().drift());
  }
  if (run.steps().suggestion())
    progress->set_suggested_seconds_per_step(run.steps().suggestion()->seconds);
  progress->set_faults(run.faults());
  FillSwap(run.monitor().total(), progress->mutable_swap_total());
  FillMinimum(run.minimal_swap(), progress->mutable_swap_minimum_per_step());
  progress->set_host_bytes(plan::ArenaLayout(run.setup().model, run.setup().plan).end().count());
  progress->set_seconds_left(
      run.steps().recent_seconds_per_step() *
      static_cast<double>(run.setup().spec.max_steps - run.completed_steps()));
  for (size_t d = 0; d < run.setup().plan.devices.size(); ++d) {
    const int device = static_cast<int>(d);
    FillDevice(run, device, members->Find({runner::Role::kWorker, device}) != nullptr, now,
               progress);
  }
  if (const Member* swapper = members->Find({runner::Role::kSwapper, 0})) {
    const int known = std::min(static_cast<int>(swapper->gpus.size()), progress->devices_size());
    for (int d = 0; d < known; ++d) *progress->mutable_devices(d)->mutable_gpu() = swapper->gpus[d];
  }
  for (int lane = 0; lane < run.monitor().num_lanes(); ++lane) {
    last_usage_[lane] = run.monitor().Usage(lane, now);
  }
}

void Watcher::FillDevice(const JobRun& run, int device, bool attached, Nanos now,
                         v1::Progress* progress) {
  const LaneMonitor& monitor = run.monitor();
  const Nanos window = now - last_sent_;
  const auto index = [&](command::LaneKind kind) {
    return monitor.table().IndexOf({kind, device});
  };
  const auto rate = [&](command::LaneKind kind) {
    const int lane = index(kind);
    const int64_t bytes = monitor.Usage(lane, now).bytes - last_usage_[lane].bytes;
    return last_sent_.count() == 0 ? 0.0 : static_cast<double>(bytes) / window.seconds();
  };
  const int compute = index(command::LaneKind::kCompute);
  const LaneUsage usage = monitor.Usage(compute, now);
  const LaneUsage& before = last_usage_[compute];
  v1::DeviceProgress* out = progress->add_devices();
  out->set_device(device);
  out->set_spec(run.DeviceName(device));
  const CommandLabel* head = monitor.Head(compute);
  out->set_state(!attached                    ? "lost"
                 : head == nullptr            ? "idle"
                 : run.HeadIsRunning(compute) ? "running"
                                              : "waiting");
  if (head != nullptr) {
    out->set_current(absl::StrCat(Describe(*head, run.setup().plan), ", step ", head->step + 1));
  }
  out->set_memory_cap(run.setup().plan.devices[device].memory.count());
  out->set_resident_bytes(run.runner().dispatcher().PeakBytes(device).count());
  out->set_workspace_peak(run.workspace_peaks()[device]);
  out->set_peak_bytes(run.PeakBytes(device).count());
  out->set_h2d_bytes_per_second(rate(command::LaneKind::kH2DBulk) +
                                rate(command::LaneKind::kH2DStream));
  out->set_d2h_bytes_per_second(rate(command::LaneKind::kD2H));
  out->set_p2p_bytes_per_second(rate(command::LaneKind::kP2P));
  if (last_sent_.count() == 0) return;
  const double computing = Share(usage.busy - before.busy, window);
  const double occupied = Share(usage.outstanding - before.outstanding, window);
  out->set_computing_share(computing);
  out->set_waiting_share(std::max(0.0, occupied - computing));
  out->set_idle_share(std::max(0.0, 1.0 - std::max(occupied, computing)));
}

}  // namespace harmony::service
