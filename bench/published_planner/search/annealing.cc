#include "bench/published_planner/search/annealing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace harmony::published {
namespace {

// Counter-based: draw k of a seed is a hash of (seed, k) (SplitMix64; Steele et al., OOPSLA 2014).
// Philox would cost as much as an evaluation.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int Below(int bound) {
    return static_cast<int>((Next() >> 32) * static_cast<uint64_t>(bound) >> 32);
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

class Annealer {
 public:
  Annealer(const PackCosts& costs, int gpus, const Cuts& start, uint64_t seed)
      : costs_(costs), evaluator_(costs, gpus), draws_(seed), current_(start), trial_(start) {}
  AnnealingResult Run(const AnnealingOptions& options);

 private:
  bool Propose();
  bool Shift(std::vector<int>& starts, int end);
  bool Insert(std::vector<int>& starts, int end);
  bool Remove(std::vector<int>& starts);

  const PackCosts& costs_;
  PipelineEvaluator evaluator_;
  Draws draws_;
  Cuts current_, trial_;
};

// Moves one start, or a run of neighbouring ones together, by a few layers.
bool Annealer::Shift(std::vector<int>& starts, int end) {
  const int count = static_cast<int>(starts.size());
  if (count < 2) return false;
  const int from = 1 + draws_.Below(count - 1);
  int run = 1;
  const int kind = draws_.Below(4);
  if (kind == 0) run = 1 + draws_.Below(count - from);
  int by = 1;
  while (by < 16 && draws_.Below(3) == 0) ++by;
  if (draws_.Below(2) == 0) by = -by;
  for (int k = from; k < from + run; ++k) starts[k] += by;
  const int last = from + run - 1;
  const int next = last + 1 < count ? starts[last + 1] : end;
  return starts[from] > starts[from - 1] && starts[last] < next;
}

bool Annealer::Insert(std::vector<int>& starts, int end) {
  const int layer = 1 + draws_.Below(end - 1);
  const auto place = std::lower_bound(starts.begin(), starts.end(), layer);
  if (place != starts.end() && *place == layer) return false;
  starts.insert(place, layer);
  return true;
}

bool Annealer::Remove(std::vector<int>& starts) {
  if (starts.size() < 2) return false;
  starts.erase(starts.begin() + 1 + draws_.Below(static_cast<int>(starts.size()) - 1));
  return true;
}

// Changes trial_, a copy of current_. False when that makes no valid cuts.
bool Annealer::Propose() {
  const int layers = costs_.layers;
  const int all = static_cast<int>(trial_.forward.size() + trial_.backward.size());
  const bool forward = draws_.Below(all) < static_cast<int>(trial_.forward.size());
  const int forward_end = trial_.backward.back();
  std::vector<int>& starts = forward ? trial_.forward : trial_.backward;
  const int end = forward ? forward_end : layers;
  if (end < 2) return false;
  bool valid = false;
  switch (draws_.Below(8)) {
    case 0:
      valid = Insert(starts, end);
      break;
    case 1:
      valid = Remove(starts);
      break;
    case 2:
      valid = Remove(starts) && Insert(starts, end);
      break;
    default:
      valid = Shift(starts, end);
  }
  if (!valid) return false;
  if (trial_.backward.back() != forward_end) {  // the forward packs end elsewhere now
    std::vector<int>& f = trial_.forward;
    while (!f.empty() && f.back() >= trial_.backward.back()) f.pop_back();
    if (f.empty() && trial_.backward.size() > 1) f.push_back(0);
  }
  return Fits(trial_, costs_);
}

AnnealingResult Annealer::Run(const AnnealingOptions& options) {
  AnnealingResult result;
  double now = evaluator_.Evaluate(current_, std::numeric_limits<double>::infinity());
  result.cuts = current_;
  result.time_s = now;
  const double hot = options.hot * now, ratio = options.cold / options.hot;
  double temperature = hot;
  // Invalid proposals cost no steps; this ends a search that finds no valid ones.
  int64_t futile = 0;
  while (evaluator_.steps() < options.steps && futile < 10'000) {
    if (result.evaluations % 64 == 0) {
      const double done =
          static_cast<double>(evaluator_.steps()) / static_cast<double>(options.steps);
      temperature = hot * std::pow(ratio, done);
    }
    trial_ = current_;
    if (!Propose()) {
      ++futile;
      continue;
    }
    futile = 0;
    ++result.evaluations;
    const double limit = now - temperature * std::log(1 - draws_.Unit());
    const double time = evaluator_.Evaluate(trial_, limit);
    if (time >= limit) continue;
    std::swap(current_, trial_);
    now = time;
    if (now < result.time_s) {
      result.time_s = now;
      result.cuts = current_;
    }
  }
  return result;
}

}  // namespace

AnnealingResult Anneal(const PackCosts& costs, int gpus, const Cuts& start,
                       const AnnealingOptions& options) {
  return Annealer(costs, gpus, start, options.seed).Run(options);
}

}  // namespace harmony::published
