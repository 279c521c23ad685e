#include "coordinator/planner/paper/pipeline_search.h"

#include <algorithm>
#include <limits>
#include <set>

#include "coordinator/planner/paper/annealing.h"
#include "coordinator/planner/paper/enumeration.h"
#include "coordinator/planner/paper/lower_bound.h"
#include "coordinator/planner/paper/pack_shapes.h"
#include "coordinator/planner/paper/pipeline_evaluator.h"

namespace harmony::paper {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Work of a search, in row steps: below a second on two cores of a machine of 2020; more for chains
// on which one evaluation takes as long as ten of a short one.
constexpr int64_t kSteps = 600'000'000, kStepsOfLongChain = 900'000'000;
constexpr int kLongChain = 400;

// One pair of microbatch sizes: its bound, and the best cuts seen.
struct Candidate {
  const PackCosts* costs = nullptr;
  double bound = kInfinity;
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

// Times cuts that shrink towards layer 0 in several ways.
void TryTapered(int gpus, Candidate* candidate) {
  const PackCosts& costs = *candidate->costs;
  const std::vector<int> forward = FewestPacks(costs, Phase::kForward);
  const std::vector<int> backward = FewestPacks(costs, Phase::kBackward);
  if (backward[costs.layers] == kNoPacks) return;
  PipelineEvaluator evaluator(costs, gpus);
  const auto consider = [&](const Cuts& cuts) {
    if (!Fits(cuts, costs)) return;
    ++candidate->evaluations;
    const double time = evaluator.Evaluate(cuts, candidate->time);
    if (time >= candidate->time) return;
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
  if (candidate->time < kInfinity) return;
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
      : gpus_(gpus), options_(options) {
    candidates_.resize(pairs.size());
    for (size_t p = 0; p < pairs.size(); ++p) candidates_[p].costs = &pairs[p];
  }
  SearchResult Run();

 private:
  void Enumerate();
  void Start();
  void Anneal();
  void Rank(size_t keep);
  void Round(size_t keep, int trials_each, int64_t steps, double hot);

  const int gpus_;
  const SearchOptions& options_;
  std::vector<Candidate> candidates_;  // after the start: those that fit
  int64_t evaluations_ = 0;
  uint64_t trials_ = 0;
};

void Race::Start() {
  options_.for_each(static_cast<int>(candidates_.size()), [&](int c) {
    Candidate& candidate = candidates_[c];
    candidate.bound = PipelineLowerBound(*candidate.costs, gpus_);
    if (candidate.bound < kInfinity) TryTapered(gpus_, &candidate);
  });
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
    trials[t].result = paper::Anneal(*from.costs, gpus_, from.cuts, trials[t].options);
  });
  for (Trial& trial : trials) {
    evaluations_ += trial.result.evaluations;
    Candidate& candidate = candidates_[trial.candidate];
    if (trial.result.time_s >= candidate.time) continue;
    candidate.time = trial.result.time_s;
    candidate.cuts = std::move(trial.result.cuts);
  }
}

void Race::Enumerate() {
  options_.for_each(static_cast<int>(candidates_.size()), [&](int c) {
    Candidate& candidate = candidates_[c];
    EnumerationResult best = TryAllCuts(*candidate.costs, gpus_);
    candidate.cuts = std::move(best.cuts);
    candidate.time = candidate.bound = best.time_s;
    candidate.evaluations = best.evaluations;
  });
}

void Race::Anneal() {
  const bool long_chain = candidates_.front().costs->layers > kLongChain;
  const int64_t steps = options_.steps > 0 ? options_.steps
                        : long_chain       ? kStepsOfLongChain
                                           : kSteps;
  Round(12, 1, steps / 4, 1e-2);
  Round(4, 2, steps / 3, 1e-2);
  Round(2, 3, steps - steps / 4 - steps / 3, 5e-3);
}

SearchResult Race::Run() {
  SearchResult result;
  const bool enumerable = candidates_.front().costs->layers <= kEnumerableLayers;
  if (enumerable) {
    Enumerate();
  } else {
    Start();
  }
  for (const Candidate& candidate : candidates_) evaluations_ += candidate.evaluations;
  std::erase_if(candidates_, [](const Candidate& c) { return c.time == kInfinity; });
  if (candidates_.empty()) return result;
  result.size_pairs = static_cast<int>(candidates_.size());
  result.lower_bound_s = kInfinity;
  for (const Candidate& candidate : candidates_) {
    result.lower_bound_s = std::min(result.lower_bound_s, candidate.bound);
  }
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

}  // namespace harmony::paper
