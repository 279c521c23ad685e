#include "bench/published_planner/cost_model/event_simulator.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "common/base/status.h"

namespace harmony::published {
namespace {

enum Stream { kSwapIn, kSwapOut, kPeerIn, kPeerOut, kCompute, kCpu, kStreams };

template <typename T>
T Sum(const std::vector<T>& values, const Pack& pack) {
  return std::accumulate(values.begin() + pack.first, values.begin() + pack.last + 1, T{});
}

// What the tasks of one GPU leave to its next task.
struct Gpu {
  std::array<double, kStreams> stream_end{};
  bool started = false, last_was_backward = false;  // backward: not the first one, which has no
                                                    // gradient to wait for
  std::vector<double> compute_end;                  // of its last task, per microbatch
  double delay_end = 0, recompute_end = 0;          // of its last task
  double earlier_delay_end = 0;                     // of the task before its last
};

// A part of a forward pack that starts at a stash point or at the pack's first layer.
struct Part {
  Pack layers;
  int stash = -1;  // the backward pack that starts here, or none
  double seconds = 0, message_s = 0;
};

// The profile at a schedule's microbatch sizes. Backward times include the recompute.
struct Costs {
  PhaseAt forward, recompute, backward;
};

// One run. Whatever has nothing to wait for is ready at 0.
class Simulation {
 public:
  Simulation(const LayerProfile& profile, const Machine& machine, Mode mode, int64_t minibatch,
             const Schedule& schedule, Prefetch prefetch, const Costs& costs);
  Estimate Run();

 private:
  double Do(Stream stream, double ready, double seconds) {
    return gpu_->stream_end[stream] = std::max(ready, gpu_->stream_end[stream]) + seconds;
  }
  double SwapIn(double ready, int64_t bytes);
  double SwapOut(double ready, int64_t bytes);
  double FromPeer(double ready, int64_t bytes);
  void LoadWeights(const Pack& pack);
  double GateOfFirst() const;
  double Gate(int64_t i) const;
  double Input(int task, int64_t i);
  std::vector<Part> Cut(int task) const;
  void RunTask(int task);
  void Forward(int task, int64_t i, const std::vector<Part>& parts, double input_end);
  void Backward(int task, int64_t i, double input_end, bool load_weights);
  double OutputGradient(int task, int64_t i, double ready);
  void FinishBackward(const Pack& pack);

  int64_t WeightBytes(const Pack& pack) const {
    return Sum(profile_.param_bytes, pack) + Sum(profile_.buffer_bytes, pack);
  }
  bool IsForward(int task) const { return task < forward_tasks_; }
  bool IsFirstBackward(int task) const { return task == forward_tasks_; }
  int BackwardPackOf(int task) const { return static_cast<int>(tasks_.size()) - 1 - task; }
  int GpuOf(int task) const { return serial_ ? 0 : task % machine_.gpus; }
  int64_t Microbatches(int task) const { return samples_ / (IsForward(task) ? u_fwd_ : u_bwd_); }
  double MessageSeconds(int64_t bytes) const { return 2.0 * static_cast<double>(bytes) / message_; }
  // Backward microbatches whose samples are complete with forward microbatch i and not before.
  std::pair<int64_t, int64_t> CompletedBy(int64_t i) const {
    return {i * u_fwd_ / u_bwd_, (i + 1) * u_fwd_ / u_bwd_};
  }

  const LayerProfile& profile_;
  const Machine& machine_;
  const bool all_reduce_, serial_;  // serial: one GPU; its boundary tensors go through the host
  const bool prefetch_;
  const Costs& costs_;
  const int64_t u_fwd_, u_bwd_, samples_;
  // In a pipeline that cuts samples differently in backward, they cross over through the host.
  const bool cross_by_host_;
  std::vector<Pack> tasks_;  // forward packs, then backward packs from the last
  int forward_tasks_ = 0;
  double swap_ = 0, message_ = 0;  // bytes/s of one GPU

  std::vector<Gpu> gpus_;
  Gpu* gpu_ = nullptr;       // of the task at hand
  Gpu* peer_gpu_ = nullptr;  // of the task before
  double weights_end_ = 0;
  double microbatch_end_ = 0;  // what the next microbatch waits for without prefetch
  // Per microbatch: when the output of the task before and of this one is ready, and when this one
  // has computed.
  std::vector<double> boundary_, outputs_, computed_;
  std::vector<std::vector<double>> stash_ready_;  // [backward pack][backward microbatch]
  std::vector<double> crossed_;                   // [backward microbatch]
  Estimate estimate_;
};

Simulation::Simulation(const LayerProfile& profile, const Machine& machine, Mode mode,
                       int64_t minibatch, const Schedule& schedule, Prefetch prefetch,
                       const Costs& costs)
    : profile_(profile),
      machine_(machine),
      all_reduce_(mode == Mode::kDataParallel && machine.gpus > 1),
      serial_(mode == Mode::kDataParallel || machine.gpus == 1),
      prefetch_(prefetch == Prefetch::kOn),
      costs_(costs),
      u_fwd_(schedule.u_fwd),
      u_bwd_(schedule.u_bwd),
      samples_(SamplesPerTask(mode, machine.gpus, minibatch)),
      cross_by_host_(!serial_ && schedule.u_fwd != schedule.u_bwd),
      tasks_(schedule.forward),
      forward_tasks_(static_cast<int>(schedule.forward.size())) {
  tasks_.insert(tasks_.end(), schedule.backward.rbegin(), schedule.backward.rend());
  const int busy = mode == Mode::kDataParallel
                       ? machine.gpus
                       : std::min(machine.gpus, static_cast<int>(tasks_.size()));
  swap_ = machine.swap_bytes_per_s / busy;
  message_ = machine.host_message_bytes_per_s / busy;
  gpus_.resize(serial_ ? 1 : busy);
  stash_ready_.assign(schedule.backward.size(), std::vector<double>(samples_ / u_bwd_));
  crossed_.resize(samples_ / u_bwd_);
}

double Simulation::SwapIn(double ready, int64_t bytes) {
  estimate_.swap_in_bytes += bytes;
  return Do(kSwapIn, ready, static_cast<double>(bytes) / swap_);
}

double Simulation::SwapOut(double ready, int64_t bytes) {
  estimate_.swap_out_bytes += bytes;
  return Do(kSwapOut, ready, static_cast<double>(bytes) / swap_);
}

// A send and its receive are one event in two streams.
double Simulation::FromPeer(double ready, int64_t bytes) {
  estimate_.peer_bytes += bytes;
  double& out = peer_gpu_->stream_end[kPeerOut];
  double& in = gpu_->stream_end[kPeerIn];
  const double seconds = static_cast<double>(bytes) / machine_.peer_bytes_per_s;
  return out = in = std::max({ready, out, in}) + seconds;
}

// Prefetched weights come while the last task's gradients leave.
void Simulation::LoadWeights(const Pack& pack) {
  const std::vector<double>& before = gpu_->compute_end;
  const double ready = !prefetch_ ? gpu_->delay_end : before.empty() ? 0 : before.back();
  weights_end_ = SwapIn(ready, WeightBytes(pack));
}

// Prefetched for a task: the first input, when the task before on this GPU is down to one
// microbatch (with only one: when the one before that is over).
double Simulation::GateOfFirst() const {
  const std::vector<double>& before = gpu_->compute_end;
  return before.size() >= 2 ? before[before.size() - 2] : gpu_->earlier_delay_end;
}

// When microbatch i of this task may start to come in, its source apart. With prefetch two have a
// place at a time, those of the task before included.
double Simulation::Gate(int64_t i) const {
  if (!prefetch_) return i == 0 ? weights_end_ : microbatch_end_;
  if (i == 0) return GateOfFirst();
  return i == 1 ? gpu_->delay_end : computed_[i - 2];
}

// The end of a microbatch's input: data, the boundary tensor of the task before, or a stash.
double Simulation::Input(int task, int64_t i) {
  const Pack& pack = tasks_[task];
  const double gate = Gate(i);
  const int64_t u = IsForward(task) ? u_fwd_ : u_bwd_;
  const int64_t bytes = u * profile_.input_bytes_per_sample[pack.first];
  if (task == 0) return SwapIn(gate, bytes);
  if (!IsForward(task) && !IsFirstBackward(task)) {
    return SwapIn(std::max(gate, stash_ready_[BackwardPackOf(task)][i]), bytes);
  }
  if (IsFirstBackward(task) && cross_by_host_) return SwapIn(std::max(gate, crossed_[i]), bytes);
  // Which microbatch before brings the last sample of this one: itself, when sizes are equal.
  const int64_t source = IsForward(task) ? i : ((i + 1) * u_bwd_ + u_fwd_ - 1) / u_fwd_ - 1;
  const double ready = std::max(gate, boundary_[source]);
  return serial_ ? SwapIn(ready, bytes) : FromPeer(ready, bytes);
}

std::vector<Part> Simulation::Cut(int task) const {
  const Pack& pack = tasks_[task];
  std::vector<Part> parts = {{{pack.first, pack.last}}};
  // Stash points in layer order; the first backward task needs none.
  for (int other = static_cast<int>(tasks_.size()) - 1; other > forward_tasks_; --other) {
    const int first = tasks_[other].first;
    if (first < pack.first || first > pack.last) continue;
    if (first > pack.first) {
      parts.back().layers.last = first - 1;
      parts.push_back({{first, pack.last}});
    }
    const bool same_gpu = GpuOf(other) == GpuOf(task);
    parts.back().stash = BackwardPackOf(other);
    parts.back().message_s =
        same_gpu ? 0 : MessageSeconds(u_bwd_ * profile_.input_bytes_per_sample[first]);
  }
  for (Part& part : parts) part.seconds = Sum(costs_.forward.time_s, part.layers);
  return parts;
}

void Simulation::Forward(int task, int64_t i, const std::vector<Part>& parts, double input_end) {
  const auto [done_begin, done_end] = CompletedBy(i);
  double end = input_end;
  for (const Part& part : parts) {
    double ready = std::max(end, i == 0 ? weights_end_ : 0);
    if (part.stash >= 0) {
      const int64_t input = profile_.input_bytes_per_sample[part.layers.first];
      double leave = end;
      if (prefetch_ && part.layers.first == tasks_[task].first) {  // behind the compute before
        leave = std::max(leave, i == 0 ? gpu_->delay_end : computed_[i - 1]);
      }
      const double out = SwapOut(leave, u_fwd_ * input);
      for (int64_t q = done_begin; q < done_end; ++q) {
        stash_ready_[part.stash][q] = Do(kCpu, out, part.message_s);
      }
      if (!prefetch_) ready = std::max(ready, out);
    }
    end = Do(kCompute, ready, part.seconds);
  }
  computed_.push_back(end);
  microbatch_end_ = end;
  const int64_t output = profile_.input_bytes_per_sample[tasks_[task].last + 1];
  if (serial_) {
    microbatch_end_ = end = SwapOut(end, u_fwd_ * output);
  } else if (cross_by_host_ && task + 1 == forward_tasks_) {
    end = SwapOut(end, u_fwd_ * output);
    for (int64_t q = done_begin; q < done_end; ++q) {
      crossed_[q] = Do(kCpu, end, MessageSeconds(u_bwd_ * output));
    }
  }
  outputs_.push_back(end);
}

// The end of the gradient from behind. Prefetched, it comes during the compute before; else after
// this microbatch's recompute, which `ready` is.
double Simulation::OutputGradient(int task, int64_t i, double ready) {
  if (prefetch_) {
    const bool after_recompute = i > 0 || serial_ || gpu_->last_was_backward;
    ready = after_recompute ? gpu_->recompute_end : GateOfFirst();
  }
  const int64_t bytes = u_bwd_ * profile_.input_bytes_per_sample[tasks_[task].last + 1];
  ready = std::max(ready, boundary_[i]);
  return serial_ ? SwapIn(ready, bytes) : FromPeer(ready, bytes);
}

void Simulation::Backward(int task, int64_t i, double input_end, bool load_weights) {
  const Pack& pack = tasks_[task];
  double gradient = 0;
  if (prefetch_ && !IsFirstBackward(task)) gradient = OutputGradient(task, i, 0);
  if (load_weights) LoadWeights(pack);
  const double recompute_s = Sum(costs_.recompute.time_s, pack);
  const double recomputed =
      Do(kCompute, std::max(input_end, i == 0 ? weights_end_ : 0), recompute_s);
  if (!prefetch_ && !IsFirstBackward(task)) gradient = OutputGradient(task, i, recomputed);
  gpu_->recompute_end = recomputed;
  double end = Do(kCompute, gradient, Sum(costs_.backward.time_s, pack) - recompute_s);
  computed_.push_back(end);
  if (serial_ && pack.first > 0) {
    end = SwapOut(end, u_bwd_ * profile_.input_bytes_per_sample[pack.first]);
  }
  microbatch_end_ = end;
  outputs_.push_back(end);
}

// Gradients out, and the update on the CPU.
void Simulation::FinishBackward(const Pack& pack) {
  const int64_t weights = WeightBytes(pack);
  double ready = outputs_.back();
  if (all_reduce_) {
    const int n = machine_.gpus;
    const double share = 2.0 * (n - 1) / n * static_cast<double>(weights);
    estimate_.allreduce_bytes += 2 * (n - 1) * weights;
    const double summed =
        Do(kCompute, prefetch_ ? computed_.back() : ready, share / machine_.peer_bytes_per_s);
    ready = std::max(ready, summed);
  }
  const double out = SwapOut(ready, weights);
  gpu_->delay_end = Do(kCompute, out, machine_.task_delay_s);
  Do(kCpu, out, Sum(profile_.update_time_s, pack));
}

void Simulation::RunTask(int task) {
  gpu_ = &gpus_[GpuOf(task)];
  if (task > 0) peer_gpu_ = &gpus_[GpuOf(task - 1)];
  const Pack& pack = tasks_[task];
  const std::vector<Part> parts = IsForward(task) ? Cut(task) : std::vector<Part>();
  computed_.clear();
  outputs_.clear();
  // Prefetched weights queue up behind what shares their stream: the first input, and the first
  // gradient. Not for a GPU's first task, nor in a pipeline before the gradients come.
  const bool plain_backward = !IsForward(task) && !IsFirstBackward(task);
  const bool weights_first = !prefetch_ || !gpu_->started || !(serial_ || plain_backward);
  if (weights_first) LoadWeights(pack);
  for (int64_t i = 0; i < Microbatches(task); ++i) {
    const double input_end = Input(task, i);
    const bool load_weights = i == 0 && !weights_first;
    if (IsForward(task)) {
      if (load_weights) LoadWeights(pack);
      Forward(task, i, parts, input_end);
    } else {
      Backward(task, i, input_end, load_weights);
    }
  }
  gpu_->earlier_delay_end = gpu_->delay_end;
  if (IsForward(task)) {
    const double ready = prefetch_ ? computed_.back() : microbatch_end_;
    gpu_->delay_end = Do(kCompute, ready, machine_.task_delay_s);
  } else {
    FinishBackward(pack);
  }
  gpu_->started = true;
  gpu_->last_was_backward = plain_backward;
  gpu_->compute_end.swap(computed_);
  boundary_.swap(outputs_);
}

Estimate Simulation::Run() {
  for (int task = 0; task < static_cast<int>(tasks_.size()); ++task) RunTask(task);
  for (const Gpu& gpu : gpus_) {
    const double end = *std::max_element(gpu.stream_end.begin(), gpu.stream_end.end());
    estimate_.gpu_end_s.push_back(end);
    estimate_.time_s = std::max(estimate_.time_s, end);
  }
  if (all_reduce_) {  // the other GPUs do the same
    estimate_.swap_in_bytes *= machine_.gpus;
    estimate_.swap_out_bytes *= machine_.gpus;
  }
  return std::move(estimate_);
}

int64_t MaxPackBytes(const LayerProfile& profile, const std::vector<Pack>& packs, const PhaseAt& at,
                     int64_t microbatch) {
  int64_t most = 0;
  for (const Pack& pack : packs) {
    const std::vector<int64_t>& input = profile.input_bytes_per_sample;
    const int64_t bytes =
        Sum(at.peak_bytes, pack) - microbatch * (Sum(input, pack) - input[pack.first]);
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

absl::StatusOr<Estimate> Simulate(const LayerProfile& profile, const Machine& machine, Mode mode,
                                  int64_t minibatch, const Schedule& schedule, Prefetch prefetch) {
  HARMONY_RETURN_IF_ERROR(CheckMachine(machine));
  HARMONY_RETURN_IF_ERROR(CheckSchedule(profile, mode, machine.gpus, minibatch, schedule));
  Costs costs;
  HARMONY_ASSIGN_OR_RETURN(costs.recompute, At(profile.forward, "fwd", schedule.u_bwd));
  HARMONY_ASSIGN_OR_RETURN(costs.backward, At(profile.backward, "bwd", schedule.u_bwd));
  costs.forward = costs.recompute;
  if (!schedule.forward.empty()) {
    HARMONY_ASSIGN_OR_RETURN(costs.forward, At(profile.forward, "fwd", schedule.u_fwd));
  }
  return Simulation(profile, machine, mode, minibatch, schedule, prefetch, costs).Run();
}

absl::StatusOr<PackMemory> MaxPackMemory(const LayerProfile& profile, const Schedule& schedule) {
  PackMemory memory;
  if (!schedule.forward.empty()) {
    HARMONY_ASSIGN_OR_RETURN(const PhaseAt fwd, At(profile.forward, "fwd", schedule.u_fwd));
    memory.forward_bytes = MaxPackBytes(profile, schedule.forward, fwd, schedule.u_fwd);
  }
  HARMONY_ASSIGN_OR_RETURN(const PhaseAt bwd, At(profile.backward, "bwd", schedule.u_bwd));
  memory.backward_bytes = MaxPackBytes(profile, schedule.backward, bwd, schedule.u_bwd);
  return memory;
}

}  // namespace harmony::published
