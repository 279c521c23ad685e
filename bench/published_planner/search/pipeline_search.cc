#include "bench/published_planner/search/pipeline_search.h"

#include <algorithm>
#include <limits>
#include <set>

#include "bench/published_planner/cost_model/pipeline_evaluator.h"
#include "bench/published_planner/search/annealing.h"
#include "bench/published_planner/search/enumeration.h"
#include "bench/published_planner/search/lower_bound.h"
#include "bench/published_planner/search/pack_shapes.h"

namespace harmony::published {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Work of a search, in row steps: below a second on two cores of a machine of 2020; more for chains
// on which one evaluation takes as long as ten of a short one.
constexpr int64_t kSteps = 600'000'000, kStepsOfLongChain = 900'000'000;
constexpr int kLongChain = 400;
// Cuts are tried for so many pairs of sizes at a time, then only for those that may come near the
// best, and in all for no more than a part of the work, by so many pairs.
constexpr size_t kWave = 16;
constexpr double kNear = 1.15;
constexpr int64_t kPartOfStart = 8;
constexpr int kMostShares = 64;

// One pair of microbatch sizes: its bound, and the best cuts seen.
struct Candidate {
  const PackCosts* costs = nullptr;
  double bound = kInfinity;
  bool tried = false;  // with time at infinity: what fits takes too long
  Cuts cuts;
  double time = kInfinity;
  int64_t evaluations = 0;
};

// Numbers of packs worth a try: from the fewest that fit, through multiples of the GPUs.
std::set<int> PackCounts(int fewest, int gpus, int layers) {
  std::set<int> counts;
  for (int count :
       {fewest, fewest + 1, fewest + 2, fewest + gpus, fewest + fewest / 4, fewest + fewest / 2,
        2 * fewest, gpus, gpus + 1, 2 * gpus, 2 * gpus + 1, 3 * gpus, 4 * gpus}) {
    if (count >= fewest && count <= layers) counts.insert(std::max(count, 1));
  }
  return counts;
}

// Times cuts that shrink towards layer 0 in several ways. Only what takes less than `limit` counts;
// ends after so many row steps.
void TryTapered(int gpus, double limit, int64_t steps, Candidate* candidate) {
  const PackCosts& costs = *candidate->costs;
  const std::vector<int> forward = FewestPacks(costs, Phase::kForward);
  const std::vector<int> backward = FewestPacks(costs, Phase::kBackward);
  if (backward[costs.layers] == kNoPacks) return;
  PipelineEvaluator evaluator(costs, gpus);
  const auto consider = [&](const Cuts& cuts) {
    if (candidate->tried && evaluator.steps() > steps) return;
    if (!Fits(cuts, costs)) return;
    candidate->tried = true;
    ++candidate->evaluations;
    const double cutoff = std::min(candidate->time, limit);
    const double time = evaluator.Evaluate(cuts, cutoff);
    if (time >= cutoff) return;
    candidate->time = time;
    candidate->cuts = cuts;
  };
  constexpr double kTapers[] = {1, 0.75, 0.5};
  for (int packs : PackCounts(backward[costs.layers], gpus, costs.layers)) {
    for (double taper : kTapers) {
      Cuts cuts;
      cuts.backward = TaperedStarts(costs, Phase::kBackward, costs.layers, packs, taper, gpus);
      if (cuts.backward.empty()) continue;
      const int end = cuts.backward.back();
      if (end == 0) {
        consider(cuts);
        continue;
      }
      if (forward[end] == kNoPacks) continue;
      for (int forward_packs : PackCounts(forward[end], gpus, end)) {
        cuts.forward = TaperedStarts(costs, Phase::kForward, end, forward_packs, taper, gpus);
        if (!cuts.forward.empty()) consider(cuts);
      }
    }
  }
  if (candidate->tried) return;
  // Layers so uneven that only odd cuts fit: the fewest packs.
  for (int end = costs.layers - 1; end >= 0; --end) {
    if (forward[end] == kNoPacks || backward[end] == kNoPacks) continue;
    if (!costs.BackwardFits(end, costs.layers)) continue;
    Cuts cuts{FewestStarts(costs, Phase::kForward, forward, end),
              FewestStarts(costs, Phase::kBackward, backward, end)};
    cuts.backward.push_back(end);
    consider(cuts);
  }
}

struct Trial {
  int candidate = 0;
  AnnealingOptions options;
  AnnealingResult result;
};

// Pairs of microbatch sizes against each other.
class Race {
 public:
  Race(const std::vector<PackCosts>& pairs, int gpus, const SearchOptions& options)
      : gpus_(gpus), layers_(pairs.front().layers), options_(options) {
    candidates_.resize(pairs.size());
    for (size_t p = 0; p < pairs.size(); ++p) candidates_[p].costs = &pairs[p];
  }
  SearchResult Run();

 private:
  int64_t Steps() const;
  double Best() const;
  void Enumerate();
  void Start();
  void Anneal();
  void Rank(size_t keep);
  void Round(size_t keep, int trials_each, int64_t steps, double hot);

  const int gpus_, layers_;
  const SearchOptions& options_;
  std::vector<Candidate> candidates_;  // after the start: those that fit
  int64_t evaluations_ = 0;
  uint64_t trials_ = 0;
};

// The pairs with the least bounds first.
void Race::Start() {
  options_.for_each(static_cast<int>(candidates_.size()), [&](int c) {
    candidates_[c].bound = PipelineLowerBound(*candidates_[c].costs, gpus_);
  });
  std::erase_if(candidates_, [](const Candidate& c) { return c.bound == kInfinity; });
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.bound < b.bound; });
  const int64_t steps =
      Steps() / kPartOfStart / std::clamp(static_cast<int>(candidates_.size()), 1, kMostShares);
  for (size_t begin = 0; begin < candidates_.size(); begin += kWave) {
    const double best = Best();
    if (candidates_[begin].bound >= best) break;
    const size_t count = std::min(kWave, candidates_.size() - begin);
    options_.for_each(static_cast<int>(count), [&](int i) {
      TryTapered(gpus_, best * kNear, steps, &candidates_[begin + static_cast<size_t>(i)]);
    });
  }
}

// Best first, those that cannot win dropped, and all but `keep`.
void Race::Rank(size_t keep) {
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  const double best = candidates_.front().time;
  std::erase_if(candidates_, [&](const Candidate& c) { return c.bound >= best && c.time > best; });
  if (candidates_.size() > keep) candidates_.resize(keep);
}

void Race::Round(size_t keep, int trials_each, int64_t steps, double hot) {
  Rank(keep);
  std::vector<Trial> trials(candidates_.size() * trials_each);
  for (size_t t = 0; t < trials.size(); ++t) {
    trials[t].candidate = static_cast<int>(t % candidates_.size());
    trials[t].options = {options_.seed * 1'000'003 + trials_++,
                         steps / static_cast<int64_t>(trials.size()), hot, 1e-5};
  }
  options_.for_each(static_cast<int>(trials.size()), [&](int t) {
    const Candidate& from = candidates_[trials[t].candidate];
    trials[t].result = published::Anneal(*from.costs, gpus_, from.cuts, trials[t].options);
  });
  for (Trial& trial : trials) {
    evaluations_ += trial.result.evaluations;
    Candidate& candidate = candidates_[trial.candidate];
    if (trial.result.time_s >= candidate.time) continue;
    candidate.time = trial.result.time_s;
    candidate.cuts = std::move(trial.result.cuts);
  }
}

// Of the pairs that can still win, the best cuts; what is left has been proved.
void Race::Enumerate() {
  for (size_t begin = 0; begin < candidates_.size(); begin += kWave) {
    const size_t count = std::min(kWave, candidates_.size() - begin);
    const double best = Best();
    options_.for_each(static_cast<int>(count), [&](int i) {
      Candidate& candidate = candidates_[begin + static_cast<size_t>(i)];
      if (candidate.bound >= best) return;
      EnumerationResult found = TryAllCuts(*candidate.costs, gpus_, best);
      candidate.evaluations += found.evaluations;
      if (found.time_s >= std::min(best, candidate.time)) return;
      candidate.cuts = std::move(found.cuts);
      candidate.time = found.time_s;
    });
  }
}

double Race::Best() const {
  double best = kInfinity;
  for (const Candidate& candidate : candidates_) best = std::min(best, candidate.time);
  return best;
}

int64_t Race::Steps() const {
  if (options_.steps > 0) return options_.steps;
  return layers_ > kLongChain ? kStepsOfLongChain : kSteps;
}

void Race::Anneal() {
  const int64_t steps = Steps();
  Round(12, 1, steps / 4, 1e-2);
  Round(4, 2, steps / 3, 1e-2);
  Round(2, 3, steps - steps / 4 - steps / 3, 5e-3);
}

SearchResult Race::Run() {
  SearchResult result;
  const bool enumerable = layers_ <= kEnumerableLayers;
  Start();
  if (enumerable) Enumerate();
  result.lower_bound_s = enumerable ? Best() : kInfinity;
  for (const Candidate& candidate : candidates_) {
    evaluations_ += candidate.evaluations;
    result.lower_bound_s = std::min(result.lower_bound_s, candidate.bound);
  }
  std::erase_if(candidates_, [](const Candidate& c) { return c.time == kInfinity; });
  if (candidates_.empty()) return result;
  result.size_pairs = static_cast<int>(candidates_.size());
  if (!enumerable) Anneal();
  Rank(1);
  result.time_s = candidates_.front().time;
  result.schedule = ToSchedule(candidates_.front().cuts, *candidates_.front().costs);
  result.evaluations = evaluations_;
  return result;
}

}  // namespace

SearchResult SearchPipeline(const std::vector<PackCosts>& pairs, int gpus,
                            const SearchOptions& options) {
  return Race(pairs, gpus, options).Run();
}

}  // namespace harmony::published
