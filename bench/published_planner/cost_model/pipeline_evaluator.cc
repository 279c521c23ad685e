#include "bench/published_planner/cost_model/pipeline_evaluator.h"

#include <algorithm>

namespace harmony::published {
namespace {

// What a task costs beside its rows, in row steps (measured): its preparation, which every
// evaluation does for all tasks.
constexpr int64_t kStepsPerTask = 4;

}  // namespace

Schedule ToSchedule(const Cuts& cuts, const PackCosts& costs) {
  Schedule schedule;
  schedule.u_fwd = costs.u_fwd;
  schedule.u_bwd = costs.u_bwd;
  const auto append = [](const std::vector<int>& starts, int end, std::vector<Pack>* packs) {
    for (size_t k = 0; k < starts.size(); ++k) {
      packs->push_back({starts[k], (k + 1 < starts.size() ? starts[k + 1] : end) - 1});
    }
  };
  append(cuts.forward, cuts.backward.back(), &schedule.forward);
  append(cuts.backward, costs.layers, &schedule.backward);
  return schedule;
}

bool Fits(const Cuts& cuts, const PackCosts& costs) {
  for (size_t k = 0; k < cuts.forward.size(); ++k) {
    const int end = k + 1 < cuts.forward.size() ? cuts.forward[k + 1] : cuts.backward.back();
    if (!costs.ForwardFits(cuts.forward[k], end)) return false;
  }
  for (size_t k = 0; k < cuts.backward.size(); ++k) {
    const int end = k + 1 < cuts.backward.size() ? cuts.backward[k + 1] : costs.layers;
    if (!costs.BackwardFits(cuts.backward[k], end)) return false;
  }
  return true;
}

PipelineEvaluator::PipelineEvaluator(const PackCosts& costs, int gpus)
    : costs_(costs), gpus_(gpus), by_host_(costs.u_fwd != costs.u_bwd) {
  row_.resize(std::max(costs.fwd_microbatches, costs.bwd_microbatches));
  crossed_.resize(costs.bwd_microbatches);
  for (int64_t i = 1; i <= costs.fwd_microbatches; ++i) {
    completed_.push_back(i * costs.u_fwd / costs.u_bwd);
  }
}

void PipelineEvaluator::PrepareForward(const Cuts& cuts) {
  const PackCosts& c = costs_;
  const int stashes = static_cast<int>(cuts.backward.size()) - 1;
  int stash = 0;
  for (int j = 0; j < forward_tasks_; ++j) {
    Task& t = task_[j];
    t.first = cuts.forward[j];
    t.end = j + 1 < forward_tasks_ ? cuts.forward[j + 1] : cuts.backward.back();
    t.weights = c.weights_s.Over(t.first, t.end) * share_;
    t.service = c.forward_s.Over(t.first, t.end);
    t.service += j == 0 ? c.fwd_swap_s[0] * share_ : c.fwd_peer_s[t.first];
    t.stash_begin = stash;
    while (stash < stashes && cuts.backward[stash] < t.end) ++stash;
    t.stash_end = stash;
    double later_stashes = 0;
    for (int k = t.stash_end - 1; k >= t.stash_begin; --k) {
      const int layer = cuts.backward[k];
      until_end_[k] = c.forward_s.Over(layer, t.end) + later_stashes;
      later_stashes += c.fwd_swap_s[layer] * share_;
      const bool same_gpu = task_[tasks_ - 1 - k].gpu == t.gpu;
      message_[k] = same_gpu ? 0 : c.bwd_message_s[layer] * share_;
    }
    t.service += later_stashes;
    t.turnaround = t.service;
  }
}

void PipelineEvaluator::PrepareBackward(const Cuts& cuts) {
  const PackCosts& c = costs_;
  const int packs = static_cast<int>(cuts.backward.size());
  for (int k = 0; k < packs; ++k) {
    Task& t = task_[tasks_ - 1 - k];
    t.first = cuts.backward[k];
    t.end = k + 1 < packs ? cuts.backward[k + 1] : c.layers;
    t.stash_begin = k;
    t.weights = c.weights_s.Over(t.first, t.end) * share_;
    const double recompute = c.recompute_s.Over(t.first, t.end);
    const double backward = c.backward_s.Over(t.first, t.end);
    if (k + 1 < packs) {
      t.turnaround = c.bwd_peer_s[t.end] + backward - recompute;
      t.service = c.bwd_swap_s[t.first] * share_ + recompute + t.turnaround;
    } else {
      const bool by_peer = forward_tasks_ > 0 && !by_host_;
      const double input = by_peer ? c.bwd_peer_s[t.first] : c.bwd_swap_s[t.first] * share_;
      t.service = t.turnaround = input + backward;
    }
  }
}

// From the end backwards: what must still happen after each task's last microbatch.
void PipelineEvaluator::PrepareBounds() {
  double rest = 0;
  for (int j = tasks_ - 1; j >= 0; --j) {
    Task& t = task_[j];
    double own = costs_.delay_s;
    double release = own;
    if (!IsForward(j)) {
      own = t.weights + std::max(own, costs_.update_s.Over(t.first, t.end));
      release += t.weights;
    }
    t.rest = std::max(rest, own);
    t.tail = t.rest;
    if (j + busy_ < tasks_) {
      const Task& next = task_[j + busy_];
      const double rows = static_cast<double>(Microbatches(j + busy_));
      t.tail = std::max(t.tail, release + next.weights + rows * next.service + next.tail);
    }
    rest = t.rest + t.turnaround;
  }
}

void PipelineEvaluator::Prepare(const Cuts& cuts) {
  forward_tasks_ = static_cast<int>(cuts.forward.size());
  tasks_ = forward_tasks_ + static_cast<int>(cuts.backward.size());
  busy_ = std::min(gpus_, tasks_);
  share_ = busy_;
  task_.resize(tasks_);
  for (int j = 0, gpu = 0; j < tasks_; ++j, gpu = gpu + 1 == busy_ ? 0 : gpu + 1) {
    task_[j].gpu = gpu;
  }
  message_.resize(cuts.backward.size());
  until_end_.resize(cuts.backward.size());
  const size_t stashes = cuts.backward.size() * costs_.bwd_microbatches;
  if (stash_.size() < stashes) stash_.resize(stashes);
  delay_end_.assign(busy_, 0);
  cpu_end_.assign(busy_, 0);
  std::fill(row_.begin(), row_.end(), 0.0);
  latest_ = 0;
  PrepareForward(cuts);
  PrepareBackward(cuts);
  PrepareBounds();
}

// A lower bound on the iteration's end before the task has run: its microbatches come one after the
// other, not before the first one's input and the weights.
double PipelineEvaluator::EarliestEnd(int task) const {
  const Task& t = task_[task];
  double start = delay_end_[task_[task].gpu] + t.weights;
  if (task != forward_tasks_ || !by_host_) {
    start = std::max(start, row_[0] + t.turnaround - t.service);
  }
  return start + static_cast<double>(Microbatches(task)) * t.service + t.tail;
}

double PipelineEvaluator::RunForward(int task) {
  const double service = task_[task].service;
  double end = delay_end_[task_[task].gpu] + task_[task].weights;
  double* row = row_.data();
  for (int64_t i = 0; i < costs_.fwd_microbatches; ++i) {
    row[i] = end = std::max(end, row[i]) + service;
  }
  SendStashes(task);
  return end;
}

// Copies of the stashes to their readers' processes, one after the other on the CPU.
void PipelineEvaluator::SendStashes(int task) {
  const Task& t = task_[task];
  if (t.stash_begin == t.stash_end) return;
  double cpu = cpu_end_[task_[task].gpu];
  for (int64_t i = 0; i < costs_.fwd_microbatches; ++i) {
    for (int k = t.stash_begin; k < t.stash_end; ++k) {
      const double out = row_[i] - until_end_[k];
      for (int64_t q = completed_[i]; q < completed_[i + 1]; ++q) {
        StashOf(k)[q] = cpu = std::max(cpu, out) + message_[k];
      }
    }
  }
  cpu_end_[task_[task].gpu] = cpu;
  latest_ = std::max(latest_, cpu);
}

// The outputs leave by the link that the stashes leave by, then cross on the CPU as they do.
double PipelineEvaluator::RunLastForwardByHost(int task) {
  const PackCosts& c = costs_;
  const Task& t = task_[task];
  double cpu = cpu_end_[task_[task].gpu], link = 0;
  double end = delay_end_[task_[task].gpu] + t.weights;
  const double input = task == 0 ? c.fwd_swap_s[0] * share_ : c.fwd_peer_s[t.first];
  const double output = c.fwd_swap_s[t.end] * share_, message = c.bwd_message_s[t.end] * share_;
  const double compute = c.forward_s.Over(t.first, t.end);
  for (int64_t i = 0; i < c.fwd_microbatches; ++i) {
    end = std::max(end, row_[i]) + input;
    double computed = 0;  // of this microbatch
    for (int k = t.stash_begin; k < t.stash_end; ++k) {
      const int layer = task_[tasks_ - 1 - k].first;
      const double before = c.forward_s.Over(t.first, layer);
      link = end = std::max(end + before - computed, link) + c.fwd_swap_s[layer] * share_;
      computed = before;
      for (int64_t q = completed_[i]; q < completed_[i + 1]; ++q) {
        StashOf(k)[q] = cpu = std::max(cpu, end) + message_[k];
      }
    }
    end += compute - computed;
    link = std::max(link, end) + output;
    for (int64_t q = completed_[i]; q < completed_[i + 1]; ++q) {
      crossed_[q] = cpu = std::max(cpu, link) + message;
    }
  }
  cpu_end_[task_[task].gpu] = cpu;
  latest_ = std::max({latest_, cpu, link});
  return end;
}

double PipelineEvaluator::RunFirstBackward(int task) {
  const Task& t = task_[task];
  const double* input = by_host_ && task > 0 ? crossed_.data() : row_.data();
  double end = delay_end_[task_[task].gpu] + t.weights;
  for (int64_t i = 0; i < costs_.bwd_microbatches; ++i) {
    row_[i] = end = std::max(end, input[i]) + t.service;
  }
  return end;
}

double PipelineEvaluator::RunBackward(int task) {
  const Task& t = task_[task];
  const double recompute = t.service - t.turnaround;  // and the stash's way in
  const double* stash = StashOf(t.stash_begin);
  double* row = row_.data();
  double end = delay_end_[task_[task].gpu] + t.weights;
  for (int64_t i = 0; i < costs_.bwd_microbatches; ++i) {
    row[i] = end = std::max(std::max(end, stash[i]) + recompute, row[i]) + t.turnaround;
  }
  return end;
}

void PipelineEvaluator::FinishTask(int task, double last_end) {
  const Task& t = task_[task];
  double& delay = delay_end_[task_[task].gpu];
  double& cpu = cpu_end_[task_[task].gpu];
  if (IsForward(task)) {
    delay = last_end + costs_.delay_s;
  } else {
    delay = last_end + t.weights + costs_.delay_s;
    cpu = std::max(cpu, last_end + t.weights) + costs_.update_s.Over(t.first, t.end);
  }
  latest_ = std::max({latest_, delay, cpu});
}

double PipelineEvaluator::Evaluate(const Cuts& cuts, double cutoff) {
  Prepare(cuts);
  steps_ += tasks_ * kStepsPerTask;
  for (int task = 0; task < tasks_; ++task) {
    const double bound = EarliestEnd(task);
    if (bound >= cutoff) return bound;
    steps_ += Microbatches(task);
    double end = 0;
    if (!IsForward(task)) {
      end = task == forward_tasks_ ? RunFirstBackward(task) : RunBackward(task);
    } else if (by_host_ && task + 1 == forward_tasks_) {
      end = RunLastForwardByHost(task);
    } else {
      end = RunForward(task);
    }
    if (end + task_[task].rest >= cutoff) return end + task_[task].rest;
    FinishTask(task, end);
  }
  return latest_;
}

}  // namespace harmony::published
