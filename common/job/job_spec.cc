#include "common/job/job_spec.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace harmony::job {
namespace {

// The schedules' last part: from 1 at the end of the warm-up to their end at max_steps.
double DecayFactor(const JobSpec& job, int64_t step, int64_t warmup) {
  const double decay_steps = static_cast<double>(std::max<int64_t>(1, job.max_steps - warmup));
  switch (job.lr_scheduler_type) {
    case ScheduleKind::kConstant:
    case ScheduleKind::kConstantWithWarmup:
      return 1.0;
    case ScheduleKind::kLinear:
      return std::max(0.0, static_cast<double>(job.max_steps - step) / decay_steps);
    case ScheduleKind::kCosine:
    case ScheduleKind::kCosineWithMinLr:
      break;
  }
  const double progress = static_cast<double>(step - warmup) / decay_steps;
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  if (job.lr_scheduler_type == ScheduleKind::kCosine) return std::max(0.0, cosine);
  return std::max(0.0, cosine * (1.0 - job.min_lr_rate) + job.min_lr_rate);
}

}  // namespace

const char* ToString(UpdateMode mode) {
  switch (mode) {
    case UpdateMode::kAuto:
      return "auto";
    case UpdateMode::kEager:
      return "eager";
    case UpdateMode::kDeferred:
      return "deferred";
  }
  return "?";
}

int64_t JobSpec::ResolvedWarmupSteps() const {
  if (warmup_steps >= 1) return static_cast<int64_t>(warmup_steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(max_steps) * warmup_steps));
}

int JobSpec::AutoReplicas(int64_t microbatch) const {
  if (microbatch == 0) microbatch = std::max<int64_t>(micro_batch_size, 1);
  const int64_t microbatches = global_batch_size / microbatch;
  constexpr int64_t kMost = 16;
  int64_t replicas = 1;
  while (replicas < kMost && microbatches % (2 * replicas) == 0) replicas *= 2;
  return static_cast<int>(replicas);
}

std::vector<std::string> MomentNames(const JobSpec& job) {
  if (job.optim == OptimizerKind::kAdamW) return {"exp_avg", "exp_avg_sq"};
  if (job.momentum > 0) return {"momentum_buffer"};
  return {};
}

double LearningRateAt(const JobSpec& job, int64_t step_index) {
  // `constant` ignores warmup_steps, as transformers does.
  const int64_t warmup =
      job.lr_scheduler_type == ScheduleKind::kConstant ? 0 : job.ResolvedWarmupSteps();
  double rate = job.learning_rate;
  const auto next = job.learning_rate_after.upper_bound(step_index);
  if (next != job.learning_rate_after.begin()) rate = std::prev(next)->second;
  if (step_index < warmup) {
    return rate *
           (static_cast<double>(step_index) / static_cast<double>(std::max<int64_t>(1, warmup)));
  }
  return rate * DecayFactor(job, step_index, warmup);
}

}  // namespace harmony::job
