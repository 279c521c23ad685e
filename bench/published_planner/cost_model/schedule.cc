#include "bench/published_planner/cost_model/schedule.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::published {
namespace {

absl::Status CheckPacks(absl::string_view name, const std::vector<Pack>& packs, int layers) {
  int next = 0;
  for (const Pack& pack : packs) {
    if (pack.first != next || pack.last < pack.first) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": pack [", pack.first, ",", pack.last,
                                                     "] does not follow layer ", next - 1));
    }
    next = pack.last + 1;
  }
  if (next != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " covers ", next, " layers instead of ", layers));
  }
  return absl::OkStatus();
}

absl::Status CheckMicrobatch(absl::string_view name, const PhaseProfile& phase, int64_t microbatch,
                             int64_t samples) {
  if (microbatch < 1 || samples % microbatch != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", microbatch, " does not divide the ",
                                                   samples, " samples of a task"));
  }
  if (!Covers(phase, microbatch)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", microbatch, " is outside the profile, which goes from ",
                     phase.microbatch.front(), " to ", phase.microbatch.back()));
  }
  return absl::OkStatus();
}

absl::Status CheckSpeed(absl::string_view name, double bytes_per_s) {
  if (std::isfinite(bytes_per_s) && bytes_per_s > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", bytes_per_s, " bytes/s: a link needs a speed above zero"));
}

}  // namespace

absl::string_view ToString(Mode mode) { return mode == Mode::kPipeline ? "vPP" : "vDP"; }

absl::StatusOr<Mode> ParseMode(absl::string_view text) {
  if (text == "vPP") return Mode::kPipeline;
  if (text == "vDP") return Mode::kDataParallel;
  return absl::InvalidArgumentError(
      absl::StrCat("mode '", text, "': the published planner knows vPP and vDP"));
}

absl::Status CheckMachine(const Machine& machine) {
  constexpr int kMaxGpus = 1024;
  if (machine.gpus < 1 || machine.gpus > kMaxGpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpus is ", machine.gpus, ": must lie in 1..", kMaxGpus));
  }
  if (machine.memory_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory is ", machine.memory_bytes, " bytes: a GPU needs memory"));
  }
  HARMONY_RETURN_IF_ERROR(CheckSpeed("swap bandwidth", machine.swap_bytes_per_s));
  HARMONY_RETURN_IF_ERROR(CheckSpeed("peer bandwidth", machine.peer_bytes_per_s));
  HARMONY_RETURN_IF_ERROR(CheckSpeed("host message bandwidth", machine.host_message_bytes_per_s));
  if (!std::isfinite(machine.task_delay_s) || machine.task_delay_s < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("task delay is ", machine.task_delay_s, " s: must be 0 or more"));
  }
  return absl::OkStatus();
}

int64_t SamplesPerTask(Mode mode, int gpus, int64_t minibatch) {
  return mode == Mode::kDataParallel ? minibatch / gpus : minibatch;
}

absl::Status CheckSchedule(const LayerProfile& profile, Mode mode, int gpus, int64_t minibatch,
                           const Schedule& schedule) {
  HARMONY_RETURN_IF_ERROR(CheckPacks("pack_bwd", schedule.backward, profile.layers()));
  HARMONY_RETURN_IF_ERROR(CheckPacks("pack_fwd", schedule.forward, schedule.backward.back().first));
  if (mode == Mode::kDataParallel && minibatch % gpus != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("minibatch ", minibatch, " does not divide over ", gpus, " GPUs"));
  }
  const int64_t samples = SamplesPerTask(mode, gpus, minibatch);
  if (!schedule.forward.empty()) {
    HARMONY_RETURN_IF_ERROR(CheckMicrobatch("u_fwd", profile.forward, schedule.u_fwd, samples));
  }
  HARMONY_RETURN_IF_ERROR(CheckMicrobatch("u_bwd", profile.forward, schedule.u_bwd, samples));
  return CheckMicrobatch("u_bwd", profile.backward, schedule.u_bwd, samples);
}

}  // namespace harmony::published
