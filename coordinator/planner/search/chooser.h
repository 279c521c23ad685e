#pragma once

// Where code that could do one thing or another takes its choices from: at random, or each way in
// turn. So what a search tries at random and what it looks through are written once. PURE.

#include <absl/types/span.h>

#include <cstddef>
#include <numeric>
#include <vector>

#include "common/base/random.h"

namespace harmony::planner {

class Chooser {
 public:
  virtual ~Chooser() = default;
  // One of 0 to count - 1. REQUIRES: count > 0.
  virtual int Below(size_t count) = 0;
  // One of as many as there are weights, by chance as often as its weight says.
  virtual int Weighted(absl::Span<const int> weights) = 0;
  // In [0, 1).
  virtual double Fraction() = 0;

  bool Either() { return Below(2) == 0; }
  template <typename Container>
  auto& Of(Container& things) {
    return things[static_cast<size_t>(Below(things.size()))];
  }
};

class RandomChooser : public Chooser {
 public:
  RandomChooser(uint64_t seed, uint64_t stream) : random_(seed, stream) {}

  int Below(size_t count) override { return static_cast<int>(random_.Below(count)); }
  int Weighted(absl::Span<const int> weights) override {
    int drawn = Below(static_cast<size_t>(std::accumulate(weights.begin(), weights.end(), 0)));
    int i = 0;
    while (drawn >= weights[static_cast<size_t>(i)]) drawn -= weights[static_cast<size_t>(i++)];
    return i;
  }
  double Fraction() override { return random_.NextDouble(); }

 private:
  CounterRandom random_;
};

// The choices of code that is run again and again, each time another way.
class EachWay : public Chooser {
 public:
  int Below(size_t count) override {
    if (depth_ == way_.size()) way_.push_back({0, static_cast<int>(count)});
    return way_[depth_++].chosen;
  }
  int Weighted(absl::Span<const int> weights) override { return Below(weights.size()); }
  double Fraction() override { return Below(kFractions) / static_cast<double>(kFractions); }

  // To be called at the end of a way; false: there is no other.
  bool Next() {
    depth_ = 0;
    while (!way_.empty() && ++way_.back().chosen == way_.back().count) way_.pop_back();
    return !way_.empty();
  }

 private:
  static constexpr size_t kFractions = 8;
  struct Choice {
    int chosen, count;
  };
  std::vector<Choice> way_;  // the choices made, in their order
  size_t depth_ = 0;
};

template <typename Go>
void ForEachWay(const Go& go) {
  EachWay way;
  do {
    go(way);
  } while (way.Next());
}

}  // namespace harmony::planner
