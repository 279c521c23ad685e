// Stages of pipelines, balanced by time.
//
// The dynamic programme of PipeDream's planner (Narayanan et al., SOSP 2019): the longest stage is
// made as short as can be, where a stage on r devices, which take microbatches in turn, counts an
// r-th. Without the planner's times of communication: who tunes tries several numbers of stages
// under the clock, which knows these.

#include <algorithm>
#include <utility>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

// A microbatch's forward and backward of a layer, what is recomputed included.
Nanos TimeOf(const LayerCosts& costs, int layer, int device, Recompute recompute) {
  const bool layers = recompute == Recompute::kLayers;
  const Nanos once = costs.Forward(layer, device, layers) + costs.Backward(layer, device, layers);
  return recompute == Recompute::kStage ? once + costs.Forward(layer, device, /*recompute=*/true)
                                        : once;
}

class Balance {
 public:
  Balance(const LayerCosts& costs, const Cut& cut)
      : layers_(costs.num_layers()),
        devices_(costs.num_devices()),
        stages_(std::min({cut.stages > 0 ? cut.stages : devices_, devices_, layers_})),
        replicas_(std::min(cut.replicas, devices_ - stages_ + 1)),
        // Devices may differ: the time of a layer on a device is that device's.
        until_(SumsOf(costs, cut.recompute)),
        until_of_last_(SumsOf(costs, cut.last_keeps && cut.recompute == Recompute::kStage
                                         ? Recompute::kNothing
                                         : cut.recompute)) {}

  std::vector<Stage> Stages() {
    best_.assign(static_cast<size_t>(stages_), {});
    for (int stage = 0; stage < stages_; ++stage) {
      best_[static_cast<size_t>(stage)].resize(static_cast<size_t>((layers_ + 1) * (devices_ + 1)));
      for (int devices = stage + 1; devices <= std::min(devices_, (stage + 1) * replicas_);
           ++devices) {
        for (int end = stage + 1; end <= layers_; ++end) Fill(stage, devices, end);
      }
    }
    int devices = stages_;
    for (int more = stages_ + 1; more <= std::min(devices_, stages_ * replicas_); ++more) {
      if (At(stages_ - 1, more, layers_).longest < At(stages_ - 1, devices, layers_).longest) {
        devices = more;
      }
    }
    longest_ = At(stages_ - 1, devices, layers_).longest;
    std::vector<Stage> result(static_cast<size_t>(stages_));
    for (int stage = stages_ - 1, end = layers_; stage >= 0; --stage) {
      const Choice choice = At(stage, devices, end);
      devices -= choice.replicas;
      result[static_cast<size_t>(stage)] = {{choice.begin, end - 1}, devices, choice.replicas};
      end = choice.begin;
    }
    return result;
  }
  // Of the stages above: a microbatch in the longest one, over its replicas.
  Nanos longest() const { return longest_; }

 private:
  // The stages up to one, which ends before some layer, on so many devices.
  struct Choice {
    Nanos longest = Seconds(1'000'000'000);
    int begin = 0, replicas = 1;  // of the last of them
  };
  using Sums = std::vector<std::vector<Nanos>>;  // by device: of layers [0, i)

  Sums SumsOf(const LayerCosts& costs, Recompute recompute) const {
    Sums sums(static_cast<size_t>(devices_), std::vector<Nanos>(1));
    for (int device = 0; device < devices_; ++device) {
      std::vector<Nanos>& of = sums[static_cast<size_t>(device)];
      for (int layer = 0; layer < layers_; ++layer) {
        of.push_back(of.back() + TimeOf(costs, layer, device, recompute));
      }
    }
    return sums;
  }

  Choice& At(int stage, int devices, int end) {
    return best_[static_cast<size_t>(stage)][static_cast<size_t>(devices * (layers_ + 1) + end)];
  }

  // Of the layers [begin, end) on the `replicas` devices before `devices`.
  Nanos StageTime(int stage, int devices, int replicas, int begin, int end) const {
    const Sums& sums = stage + 1 == stages_ ? until_of_last_ : until_;
    Nanos longest;
    for (int device = devices - replicas; device < devices; ++device) {
      const std::vector<Nanos>& of = sums[static_cast<size_t>(device)];
      longest = std::max(longest, of[static_cast<size_t>(end)] - of[static_cast<size_t>(begin)]);
    }
    return Nanos(longest.count() / replicas);
  }

  void Fill(int stage, int devices, int end) {
    Choice& best = At(stage, devices, end);
    for (int replicas = 1; replicas <= std::min(replicas_, devices - stage); ++replicas) {
      const int others = devices - replicas;
      if (stage == 0 ? others > 0 : others > stage * replicas_) continue;
      for (int begin = stage; begin < (stage == 0 ? 1 : end); ++begin) {
        Nanos longest = StageTime(stage, devices, replicas, begin, end);
        if (stage > 0) longest = std::max(longest, At(stage - 1, others, begin).longest);
        if (longest < best.longest) best = {longest, begin, replicas};
      }
    }
  }

  const int layers_, devices_, stages_, replicas_;
  const Sums until_, until_of_last_;
  Nanos longest_;
  std::vector<std::vector<Choice>> best_;  // by stage; devices and end
};

}  // namespace

std::vector<Stage> BalancedStages(const LayerCosts& costs, const Cut& cut) {
  return Balance(costs, cut).Stages();
}

Nanos LeastComputing(const LayerCosts& costs, const Setting& setting, bool data_parallel) {
  const bool some = setting.recompute == Recompute::kLayers && setting.recomputed_quarters < 4;
  Balance balance(costs, {.stages = data_parallel ? 1 : setting.stages,
                          .replicas = setting.stages > 0 ? setting.microbatches : 1,
                          .recompute = some ? Recompute::kNothing : setting.recompute,
                          .last_keeps = true});
  balance.Stages();
  // Of the microbatches of a stage that is recomputed the last one may not be.
  const bool all = setting.recompute != Recompute::kStage;
  return balance.longest() * (setting.microbatches - (all ? 0 : 1));
}

}  // namespace harmony::baselines
