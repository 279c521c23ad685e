#pragma once

// Random small instances of the published planner's problem. The same (seed, stream) gives the same
// instance, so a failure is replayed with HARMONY_TEST_SEED=<the printed seed>.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/published_planner/cost_model/layer_profile.h"
#include "bench/published_planner/cost_model/pipeline_evaluator.h"
#include "bench/published_planner/cost_model/schedule.h"
#include "common/base/random.h"

namespace harmony::published {

inline uint64_t TestSeed() {
  const char* text = std::getenv("HARMONY_TEST_SEED");
  return text == nullptr ? 20221 : std::strtoull(text, nullptr, 10);
}

inline std::string Replay(uint64_t stream) {
  return "instance " + std::to_string(stream) +
         "; replay with HARMONY_TEST_SEED=" + std::to_string(TestSeed());
}

inline double Between(CounterRandom& random, double low, double high) {
  return low + (high - low) * random.NextDouble();
}
inline int IntBetween(CounterRandom& random, int low, int high) {
  return low + static_cast<int>(random.Below(static_cast<uint64_t>(high - low + 1)));
}

// Layers of very different sizes; sometimes links bind, sometimes compute, sometimes the CPU.
inline LayerProfile RandomProfile(CounterRandom& random, int layers, int64_t max_microbatch) {
  LayerProfile p;
  p.model = "random";
  const double byte_scale = Between(random, 1e6, 4e8), time_scale = Between(random, 1e-3, 0.2);
  const double update_scale = Between(random, 0, 1);
  for (int64_t u = 1; u <= max_microbatch; ++u) {
    p.forward.microbatch.push_back(u);
    p.backward.microbatch.push_back(u);
  }
  for (int l = 0; l < layers; ++l) {
    const auto weights = static_cast<int64_t>(Between(random, 0, byte_scale));
    p.param_bytes.push_back(weights);
    p.grad_bytes.push_back(weights);
    p.buffer_bytes.push_back(static_cast<int64_t>(Between(random, 0, byte_scale / 10)));
    p.optimizer_state_bytes.push_back(2 * weights);
    p.update_time_s.push_back(Between(random, 0, update_scale));
    p.input_bytes_per_sample.push_back(static_cast<int64_t>(Between(random, 8, byte_scale)));
    std::vector<double> forward, backward;
    std::vector<int64_t> forward_peak, backward_peak;
    const double f = Between(random, 0, time_scale), b = Between(random, 0, 3 * time_scale);
    for (int64_t u = 1; u <= max_microbatch; ++u) {
      forward.push_back(f * (0.3 + static_cast<double>(u)) * Between(random, 0.9, 1.1));
      backward.push_back(forward.back() + b * (0.3 + static_cast<double>(u)));
      forward_peak.push_back(weights + 2 * u * p.input_bytes_per_sample.back());
      backward_peak.push_back(2 * weights + 4 * u * p.input_bytes_per_sample.back());
    }
    p.forward.time_s.push_back(forward);
    p.backward.time_s.push_back(backward);
    p.forward.peak_bytes.push_back(forward_peak);
    p.backward.peak_bytes.push_back(backward_peak);
  }
  for (int l = 0; l < layers; ++l) {
    p.output_bytes_per_sample.push_back(l + 1 < layers ? p.input_bytes_per_sample[l + 1] : 0);
  }
  return p;
}

// Any cuts of `layers` layers, whether they fit or not.
inline Cuts RandomCuts(CounterRandom& random, int layers) {
  const auto starts = [&](int end) {
    std::vector<int> result = {0};
    const double density = random.NextDouble();
    for (int l = 1; l < end; ++l) {
      if (random.NextDouble() < density) result.push_back(l);
    }
    return result;
  };
  Cuts cuts;
  cuts.backward = starts(layers);
  if (cuts.backward.size() > 1) cuts.forward = starts(cuts.backward.back());
  return cuts;
}

}  // namespace harmony::published
