#include "coordinator/planner/imported/published_packs.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "coordinator/planner/paper/pack_costs.h"

namespace harmony {
namespace {

using paper::Pack;
using Packs = std::vector<Pack>;

// Of one phase, the layers before `end`.
struct Phase {
  const std::vector<int64_t>& bytes;  // running sums
  const std::vector<int64_t>& input;
  const std::vector<double>& seconds;  // running sums
  int64_t memory;
  int end;

  int64_t Need(int first, int last) const { return bytes[last + 1] - bytes[first] + input[first]; }
  bool Fit(const Packs& packs) const {
    return std::all_of(packs.begin(), packs.end(),
                       [&](const Pack& pack) { return Need(pack.first, pack.last) <= memory; });
  }
};

// Cut where the running sum reaches the next of so many equal parts; empty where that leaves one
// without a layer or one that does not fit.
template <typename T>
Packs EqualParts(const Phase& phase, const std::vector<T>& sums, int parts) {
  const double total = static_cast<double>(sums[phase.end]);
  Packs packs;
  int first = 0;
  for (int part = 1; part <= parts; ++part) {
    const double share = total * part / parts;
    const auto below = [](T sum, double limit) { return static_cast<double>(sum) < limit; };
    const auto reached =
        std::lower_bound(sums.begin() + 1, sums.begin() + phase.end + 1, share, below);
    const int next = part == parts ? phase.end : static_cast<int>(reached - sums.begin()) - 1;
    if (next <= first || phase.Need(first, next - 1) > phase.memory) return {};
    packs.push_back({first, next - 1});
    first = next;
  }
  return packs;
}

template <typename T>
Packs FewestEqualParts(const Phase& phase, const std::vector<T>& sums) {
  // So many packs do not hold all of it.
  const int64_t too_few = (phase.bytes[phase.end] - 1) / phase.memory;
  for (int64_t parts = std::max<int64_t>(too_few, 1); parts <= phase.end; ++parts) {
    Packs packs = EqualParts(phase, sums, static_cast<int>(parts));
    if (!packs.empty()) return packs;
  }
  return {};
}

// Asks for less than the memory, as it does.
Packs FilledFromLast(const Phase& phase) {
  Packs packs;
  for (int last = phase.end - 1; last >= 0; last = packs.back().first - 1) {
    int first = last;
    if (phase.Need(first, last) >= phase.memory) return {};
    while (first > 0 && phase.Need(first - 1, last) < phase.memory) --first;
    packs.push_back({first, last});
  }
  std::reverse(packs.begin(), packs.end());
  return packs;
}

Packs OfEqualSize(const Phase& phase, int size) {
  Packs packs;
  for (int first = 0; first < phase.end; first += size) {
    packs.push_back({first, std::min(first + size, phase.end) - 1});
  }
  return phase.Fit(packs) ? packs : Packs();
}

std::vector<Packs> WaysToPack(const Phase& phase) {
  return {FewestEqualParts(phase, phase.seconds), FewestEqualParts(phase, phase.bytes),
          FilledFromLast(phase)};
}

}  // namespace

absl::StatusOr<std::vector<paper::Schedule>> PublishedSchedules(const paper::LayerProfile& profile,
                                                                const paper::Machine& machine,
                                                                int64_t samples, int64_t u_fwd,
                                                                int64_t u_bwd) {
  HARMONY_ASSIGN_OR_RETURN(const paper::PackCosts costs,
                           paper::MakePackCosts(profile, machine, samples, u_fwd, u_bwd));
  const Phase backward{costs.backward_bytes, costs.bwd_input, costs.backward_s.before,
                       machine.memory_bytes, costs.layers};
  std::vector<paper::Schedule> schedules;
  const auto add = [&](Packs forward, const Packs& packs) {
    schedules.push_back({u_fwd, u_bwd, std::move(forward), packs});
  };
  const auto add_all = [&](const Packs& packs, bool others) {
    if (packs.empty()) return;
    const Phase forward{costs.forward_bytes, costs.fwd_input, costs.forward_s.before,
                        machine.memory_bytes, packs.back().first};
    Packs alike(packs.begin(), packs.end() - 1);
    if (forward.Fit(alike)) add(std::move(alike), packs);
    if (forward.end == 0 || !others) return;
    for (Packs& way : WaysToPack(forward)) {
      if (!way.empty()) add(std::move(way), packs);
    }
  };
  for (const Packs& packs : WaysToPack(backward)) add_all(packs, true);
  for (int size : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
    if (size < costs.layers) add_all(OfEqualSize(backward, size), false);
  }
  std::stable_sort(
      schedules.begin(), schedules.end(), [](const paper::Schedule& a, const paper::Schedule& b) {
        return a.forward.size() + a.backward.size() < b.forward.size() + b.backward.size();
      });
  return schedules;
}

}  // namespace harmony
