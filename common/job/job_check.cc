#include "common/job/job_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace harmony::job {
namespace {

absl::Status CheckMicrobatches(const JobSpec& job) {
  const int64_t batch = job.global_batch_size, micro = job.micro_batch_size;
  if (micro == 0) return absl::OkStatus();
  if (batch % micro != 0) {
    int64_t below = std::min(micro, batch), above = micro;
    while (batch % below != 0) --below;
    while (above < batch && batch % above != 0) ++above;
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_size ", micro, " does not divide global_batch_size ", batch,
                     "; the nearest that do: ", below,
                     above <= batch && above != below ? absl::StrCat(" and ", above) : ""));
  }
  if (batch / micro <= limits::kMostMicrobatches) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("global_batch_size ", batch, " with micro_batch_size ", micro, " is ",
                   batch / micro, " microbatches a step, more than ", limits::kMostMicrobatches,
                   ": raise micro_batch_size, or lower global_batch_size"));
}

absl::Status CheckReplicas(const JobSpec& job) {
  const int64_t batch = job.global_batch_size, micro = job.micro_batch_size;
  if (job.virtual_replicas == 0) return absl::OkStatus();
  if (job.virtual_replicas > limits::kMostMicrobatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "virtual_replicas ", job.virtual_replicas, " is more than ", limits::kMostMicrobatches,
        ", the most microbatches that a step may have; lower it"));
  }
  const int64_t microbatches = batch / std::max<int64_t>(micro, 1);
  if (microbatches % job.virtual_replicas == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "virtual_replicas ", job.virtual_replicas, " does not divide ",
      micro > 0 ? absl::StrCat("the ", microbatches, " microbatches of a step (global_batch_size ",
                               batch, ", micro_batch_size ", micro, ")")
                : absl::StrCat("global_batch_size ", batch),
      ": each replica needs the same number of whole microbatches; auto would do, or a power of "
      "two up to ",
      microbatches & -microbatches));
}

}  // namespace

absl::Status CheckJob(const JobSpec& job) {
  HARMONY_RETURN_IF_ERROR(CheckMicrobatches(job));
  HARMONY_RETURN_IF_ERROR(CheckReplicas(job));
  if (job.update == UpdateMode::kEager && job.DeferredUpdates()) {
    return absl::InvalidArgumentError(
        "update: eager contradicts max_grad_norm, which needs all gradients before any update; use "
        "update: auto or max_grad_norm: 0");
  }
  if (job.gradient_dtype == DType::kBF16 && !job.bf16) {
    return absl::InvalidArgumentError(
        "gradient_dtype: bf16 is for mixed precision; set bf16: true, or leave gradients fp32");
  }
  if (job.momentum > 0 && job.optim != OptimizerKind::kSgd) {
    return absl::InvalidArgumentError(
        "momentum is sgd's; adamw has adam_beta1, or give optim: sgd");
  }
  if (job.nesterov && job.momentum <= 0) {
    return absl::InvalidArgumentError("nesterov needs a momentum above 0");
  }
  return absl::OkStatus();
}

}  // namespace harmony::job
