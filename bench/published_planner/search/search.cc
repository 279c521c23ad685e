#include "bench/published_planner/search/search.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/published_planner/cost_model/event_simulator.h"
#include "bench/published_planner/search/pipeline_search.h"
#include "bench/published_planner/search/serial_plan.h"
#include "common/base/status.h"

namespace harmony::published {
namespace {

// The sizes the planner may use: divisors that both measurements cover (backward needs a
// recompute).
struct Sizes {
  std::vector<int64_t> forward, backward;
};

absl::StatusOr<Sizes> FindSizes(const LayerProfile& profile, int64_t samples) {
  Sizes sizes;
  for (int64_t u = 1; u <= std::min(samples, profile.forward.microbatch.back()); ++u) {
    if (samples % u != 0 || !Covers(profile.forward, u)) continue;
    sizes.forward.push_back(u);
    if (Covers(profile.backward, u)) sizes.backward.push_back(u);
  }
  if (!sizes.backward.empty()) return sizes;
  return absl::InvalidArgumentError(absl::StrCat(
      "no microbatch size divides the ", samples, " samples of a task and is measured: ",
      "fwd.microbatch goes from ", profile.forward.microbatch.front(), " to ",
      profile.forward.microbatch.back(), ", bwd.microbatch from ",
      profile.backward.microbatch.front(), " to ", profile.backward.microbatch.back()));
}

// The layer that needs most, at the microbatch size where it needs least.
absl::Status NothingFits(const LayerProfile& profile, const Machine& machine, const Sizes& sizes) {
  int64_t most = 0;
  int layer = 0;
  const int64_t u = sizes.backward.front();
  const absl::StatusOr<PhaseAt> at = At(profile.backward, "bwd", u);
  if (!at.ok()) return at.status();
  for (int l = 0; l < profile.layers(); ++l) {
    if (at->peak_bytes[l] <= most) continue;
    most = at->peak_bytes[l];
    layer = l;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "does not fit: layer ", layer, " alone needs ", most, " bytes in backward at microbatch ", u,
      ", a GPU has ", machine.memory_bytes,
      "; give more memory, or another minibatch if its divisors leave only large microbatches"));
}

absl::StatusOr<SearchResult> SearchSerial(const LayerProfile& profile, const Machine& machine,
                                          Mode mode, int64_t samples, const Sizes& sizes) {
  const SerialMachine serial = MakeSerialMachine(machine, mode);
  std::vector<SerialForward> forward;
  for (int64_t u : sizes.forward) {
    HARMONY_ASSIGN_OR_RETURN(const PackCosts costs,
                             MakePackCosts(profile, machine, samples, u, sizes.backward.front()));
    forward.push_back(PlanSerialForward(costs, serial));
  }
  SearchResult result;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t u_bwd : sizes.backward) {
    SerialBackward backward;
    for (size_t f = 0; f < sizes.forward.size(); ++f) {
      HARMONY_ASSIGN_OR_RETURN(const PackCosts costs,
                               MakePackCosts(profile, machine, samples, sizes.forward[f], u_bwd));
      if (f == 0) {
        backward = PlanSerialBackward(costs, serial);
        for (const auto& labels : backward) {
          result.evaluations += static_cast<int64_t>(labels.size());
        }
      }
      const SerialPlan plan = JoinSerial(costs, serial, forward[f], backward);
      if (plan.time_s == std::numeric_limits<double>::infinity()) continue;
      ++result.size_pairs;
      if (plan.time_s >= best) continue;
      best = plan.time_s;
      result.schedule = ToSchedule(plan.cuts, costs);
    }
  }
  if (result.size_pairs > 0) result.lower_bound_s = result.time_s = best;
  return result;
}

}  // namespace

absl::StatusOr<SearchResult> Search(const LayerProfile& profile, const Machine& machine, Mode mode,
                                    int64_t minibatch, const SearchOptions& options) {
  HARMONY_RETURN_IF_ERROR(CheckProfile(profile));
  HARMONY_RETURN_IF_ERROR(CheckMachine(machine));
  if (minibatch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("minibatch is ", minibatch));
  }
  if (mode == Mode::kDataParallel && minibatch % machine.gpus != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("minibatch ", minibatch, " does not divide over ", machine.gpus, " GPUs"));
  }
  const int64_t samples = SamplesPerTask(mode, machine.gpus, minibatch);
  HARMONY_ASSIGN_OR_RETURN(const Sizes sizes, FindSizes(profile, samples));
  SearchResult result;
  if (mode == Mode::kDataParallel || machine.gpus == 1) {
    HARMONY_ASSIGN_OR_RETURN(result, SearchSerial(profile, machine, mode, samples, sizes));
  } else {
    std::vector<PackCosts> pairs;
    for (int64_t u_bwd : sizes.backward) {
      for (int64_t u_fwd : sizes.forward) {
        HARMONY_ASSIGN_OR_RETURN(PackCosts costs,
                                 MakePackCosts(profile, machine, samples, u_fwd, u_bwd));
        pairs.push_back(std::move(costs));
      }
    }
    result = SearchPipeline(pairs, machine.gpus, options);
  }
  if (result.size_pairs == 0) return NothingFits(profile, machine, sizes);
  // The event simulator has the last word on the time.
  HARMONY_ASSIGN_OR_RETURN(const Estimate estimate, Simulate(profile, machine, mode, minibatch,
                                                             result.schedule, Prefetch::kOff));
  result.time_s = estimate.time_s;
  // Rounding apart; in a serial plan the two are equal.
  const bool serial = mode == Mode::kDataParallel || machine.gpus == 1;
  if (serial || result.lower_bound_s > result.time_s) result.lower_bound_s = result.time_s;
  return result;
}

}  // namespace harmony::published
