#include "bench/published_planner/search/serial_plan.h"

#include <algorithm>
#include <limits>

namespace harmony::published {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ForwardSeconds(const PackCosts& c, const SerialMachine& machine, int first, int end) {
  const double n = machine.busy_gpus, rows = static_cast<double>(c.fwd_microbatches);
  return c.weights_s.Over(first, end) * n + c.delay_s +
         rows * (c.forward_s.Over(first, end) + (c.fwd_swap_s[first] + c.fwd_swap_s[end]) * n);
}

double StashSeconds(const PackCosts& c, const SerialMachine& machine, int layer) {
  return static_cast<double>(c.bwd_microbatches) * c.bwd_swap_s[layer] * machine.busy_gpus;
}

// From a pack's start to its gradients' arrival at the host.
double BackwardSeconds(const PackCosts& c, const SerialMachine& machine, int first, int end) {
  const double n = machine.busy_gpus, rows = static_cast<double>(c.bwd_microbatches);
  double boundary = c.bwd_swap_s[first];
  if (first > 0) boundary += c.bwd_swap_s[first];
  if (end < c.layers) boundary += c.bwd_swap_s[end];
  return 2 * n * c.weights_s.Over(first, end) +
         machine.allreduce_s_per_byte * c.weight_bytes.Over(first, end) +
         rows * (c.backward_s.Over(first, end) + boundary * n);
}

// From the start of the pack [first, end) to the iteration's end, given that of the pack below.
double ThroughPack(const PackCosts& c, const SerialMachine& machine, int first, int end,
                   double below_s) {
  const double stored = BackwardSeconds(c, machine, first, end);
  // The GPU goes on with the pack below; the CPU has at least all updates from here on to do.
  return stored + std::max(c.delay_s + below_s, c.update_s.Over(0, end));
}

// Adds a label unless another one beats it; drops those that it beats.
void AddLabel(std::vector<SerialLabel>* labels, const SerialLabel& label) {
  const auto beats = [](const SerialLabel& a, const SerialLabel& b) {
    return a.stash_s <= b.stash_s && a.stash_s + a.backward_s <= b.stash_s + b.backward_s;
  };
  for (const SerialLabel& other : *labels) {
    if (beats(other, label)) return;
  }
  std::erase_if(*labels, [&](const SerialLabel& other) { return beats(label, other); });
  labels->push_back(label);
}

}  // namespace

SerialMachine MakeSerialMachine(const Machine& machine, Mode mode) {
  if (mode == Mode::kPipeline) return {};
  const double n = machine.gpus;
  return {machine.gpus, 2 * (n - 1) / n / machine.peer_bytes_per_s};
}

double SerialTime(const PackCosts& c, const SerialMachine& machine, const Cuts& cuts) {
  double forward = 0, below = 0;
  for (size_t k = 0; k < cuts.forward.size(); ++k) {
    const int end = k + 1 < cuts.forward.size() ? cuts.forward[k + 1] : cuts.backward.back();
    forward += ForwardSeconds(c, machine, cuts.forward[k], end);
  }
  for (size_t k = 0; k < cuts.backward.size(); ++k) {
    const bool top = k + 1 == cuts.backward.size();
    if (!top) forward += StashSeconds(c, machine, cuts.backward[k]);
    below = ThroughPack(c, machine, cuts.backward[k], top ? c.layers : cuts.backward[k + 1], below);
  }
  return forward + below;
}

SerialForward PlanSerialForward(const PackCosts& c, const SerialMachine& machine) {
  SerialForward plan{std::vector<double>(c.layers, kInfinity), std::vector<int>(c.layers, -1)};
  plan.seconds[0] = 0;
  for (int end = 1; end < c.layers; ++end) {
    for (int first = 0; first < end; ++first) {
      if (!c.ForwardFits(first, end)) continue;
      const double seconds = plan.seconds[first] + ForwardSeconds(c, machine, first, end);
      if (seconds >= plan.seconds[end]) continue;
      plan.seconds[end] = seconds;
      plan.last_start[end] = first;
    }
  }
  return plan;
}

SerialBackward PlanSerialBackward(const PackCosts& c, const SerialMachine& machine) {
  SerialBackward plan(c.layers);
  plan[0] = {SerialLabel{}};
  for (int end = 1; end < c.layers; ++end) {
    for (int first = 0; first < end; ++first) {
      if (!c.BackwardFits(first, end)) continue;
      const double stash = StashSeconds(c, machine, first);
      for (size_t below = 0; below < plan[first].size(); ++below) {
        const SerialLabel& label = plan[first][below];
        AddLabel(&plan[end],
                 {label.stash_s + stash, ThroughPack(c, machine, first, end, label.backward_s),
                  first, static_cast<int>(below)});
      }
    }
  }
  return plan;
}

SerialPlan JoinSerial(const PackCosts& c, const SerialMachine& machine,
                      const SerialForward& forward, const SerialBackward& backward) {
  SerialPlan best;
  best.time_s = kInfinity;
  int best_start = 0, best_label = 0;
  for (int start = 0; start < c.layers; ++start) {
    if (forward.seconds[start] == kInfinity || !c.BackwardFits(start, c.layers)) continue;
    for (size_t k = 0; k < backward[start].size(); ++k) {
      const SerialLabel& label = backward[start][k];
      const double time = forward.seconds[start] + label.stash_s +
                          ThroughPack(c, machine, start, c.layers, label.backward_s);
      if (time >= best.time_s) continue;
      best.time_s = time;
      best_start = start;
      best_label = static_cast<int>(k);
    }
  }
  if (best.time_s == kInfinity) return best;
  best.cuts.backward = {best_start};
  for (int end = best_start, k = best_label; end > 0;) {
    const SerialLabel& label = backward[end][k];
    best.cuts.backward.push_back(label.start);
    end = label.start;
    k = label.below;
  }
  std::reverse(best.cuts.backward.begin(), best.cuts.backward.end());
  for (int end = best_start; end > 0; end = forward.last_start[end]) {
    best.cuts.forward.push_back(forward.last_start[end]);
  }
  std::reverse(best.cuts.forward.begin(), best.cuts.forward.end());
  return best;
}

}  // namespace harmony::published
