#pragma once

// Plans of one microbatch size, changed at random: judged by an estimate (step_estimate.h), the
// best of them by a rehearsal of the dispatcher. PURE.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/evaluation.h"
#include "coordinator/planner/imported/imported_model.h"
#include "coordinator/planner/imported/long_step.h"
#include "coordinator/planner/moves.h"
#include "coordinator/planner/plan_builder.h"
#include "coordinator/planner/step_estimate.h"

namespace harmony {

class Walker {
 public:
  // The best plan of the same groups and forward tasks.
  struct Seed {
    Nanos time;
    Plan plan;
  };

  // `imported` must outlive it. Walks of the same microbatch size and another `stream` differ.
  Walker(const ImportedModel& imported, int64_t samples, uint64_t stream);

  // These schedules, those that the published planner makes of this size, groups of one layer,
  // balanced groups in many numbers and others. `effort`: tasks of plans to estimate; when that
  // many are done and some plan fits, the rest is left out. Another time it goes on from there.
  void TrySeeds(const std::vector<paper::Schedule>& schedules,
                const std::vector<paper::Schedule>& published, int64_t effort);
  // The best seeds with several settings.
  void VarySeeds(int64_t effort);
  // What another walker of the same size has found, as far as it fits this one's machine.
  void Adopt(const Walker& other);
  // Random changes of the best plan (`from` 0), or of the best with other forward tasks (1), worse
  // ones accepted less and less. `effort`: tasks of plans to estimate. `hot`: what is accepted at
  // first, as a part of a step's time.
  void Walk(int64_t effort, double hot, size_t from);
  // Rehearses the best plans, then small changes of the best of these. `effort`: commands.
  void Rehearse(int64_t effort);

  bool found() const { return !kept_.empty(); }
  // Of the best plan; as much longer as Check found. REQUIRES: found()
  Nanos estimate() const {
    const Nanos time = kept_.begin()->first.first;
    return longer_ > 1 ? Nanos::FromSeconds(time.seconds() * longer_) : time;
  }
  // The best plan is rehearsed where shorter steps stand for it, which may promise too much. False:
  // it has been. REQUIRES: found()
  bool Check();
  // After Rehearse: the best as rehearsed, and what it began with as far as it was.
  const std::map<std::pair<Nanos, std::string>, Plan>& rehearsed() const { return finalists_; }
  // The seeds as estimated, the best first.
  const std::vector<Seed>& seeds() const { return seeds_; }
  int64_t samples() const { return samples_; }
  uint64_t stream() const { return stream_; }
  int64_t estimates() const { return estimates_; }
  int64_t rehearsals() const { return rehearsals_; }
  Nanos LowerBound();  // of all plans of this size

 private:
  static constexpr int kMostSlots = 3;
  using Rank = std::pair<Nanos, std::string>;  // the estimate, the plan's key

  int Devices() const { return static_cast<int>(imported_.machine.devices.size()); }
  // Two stand for a step of many microbatches (long_step.h).
  struct ShortStep {
    ShortStep(const ImportedModel& imported, const Plan& blank, int microbatches,
              const CostModel& costs)
        : costs(imported.model, blank,
                CostsOfShortStep(imported.model, blank, microbatches, costs)),
          estimator(imported.model, this->costs) {}
    TaskCosts costs;
    StepEstimator estimator;
  };

  std::vector<double> LayerTimes();
  std::vector<double> TimesOf(TaskKind kind);
  void Ramp(bool forward, int count, int ramp, double taper, Plan* plan);
  bool RandomRamp(Plan* plan);
  void TrySchedule(const paper::Schedule& schedule);
  std::optional<Nanos> TryGroups(std::vector<LayerGroup> groups);
  bool Hopeless(Nanos time) const;
  void TryEqual(int size, int64_t end);
  void TrySmallest();
  std::optional<Nanos> TrySeed(const Plan& plan);
  void SortSeeds();
  void RankSeeds();
  void TrySettings(Seed* seed);
  void TryForwards(const Plan& plan, int64_t end);
  std::optional<Nanos> Try(Plan* plan);  // and keeps it
  std::optional<Nanos> Estimate(Plan* plan);
  int FewerMicrobatches(const Plan& plan) const;
  Nanos BoundOf(const Plan& plan);
  StepEstimator& EstimatorOf(int microbatches);  // of a shorter step
  void Keep(Nanos time, const Plan& plan);
  const Seed& Start(size_t from) const;
  std::optional<Nanos> RehearsedStep(const Plan& plan);
  bool TakeIfBetter(const Plan& plan);
  void RehearseSettings(int64_t end);

  const ImportedModel& imported_;
  const int64_t samples_;
  const uint64_t stream_;
  const PlanBuilder builder_;
  const std::unique_ptr<CostModel> costs_;
  TaskCosts task_costs_;
  StepEstimator estimator_;
  std::map<int, std::unique_ptr<ShortStep>> short_;  // by microbatches
  MoveRules rules_;
  CounterRandom random_;
  StepVisits step_;
  std::map<Rank, Plan> kept_;
  std::string checked_;  // key of a plan
  double longer_ = 1;
  std::map<int, Seed> best_of_span_;                          // by forward_span
  const std::vector<double> forward_times_, backward_times_;  // of the layers
  std::vector<Seed> seeds_;                                   // best first
  // Of seeds, by their keys as they were given.
  absl::flat_hash_map<std::string, std::optional<Nanos>> tried_;
  std::vector<Plan> begun_with_;  // each walk
  absl::flat_hash_set<std::string> rehearsed_;
  std::optional<Plan> best_;
  Nanos best_time_;
  std::map<Rank, Plan> finalists_, first_finalists_;
  int64_t work_ = 0, commands_ = 0, estimates_ = 0, rehearsals_ = 0;
};

}  // namespace harmony
