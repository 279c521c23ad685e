#pragma once

// A profile at one pair of microbatch sizes, as running sums, so that any pack's seconds and bytes
// are a subtraction. PURE.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/published_planner/cost_model/layer_profile.h"
#include "bench/published_planner/cost_model/schedule.h"

namespace harmony::published {

// [l] sums over layers before l; size layers + 1.
struct RunningSum {
  std::vector<double> before;
  double Over(int first, int end) const { return before[end] - before[first]; }
};

// Swap and message seconds are those of a host link for oneself alone; with n busy GPUs all take n
// times as long.
struct PackCosts {
  int layers = 0;
  int64_t u_fwd = 1, u_bwd = 1, fwd_microbatches = 1, bwd_microbatches = 1;
  RunningSum forward_s, recompute_s, backward_s;  // of one microbatch; backward with the recompute
  RunningSum weights_s, weight_bytes, update_s;
  // A layer's input, of one microbatch. [layers]
  std::vector<double> fwd_swap_s, fwd_peer_s, bwd_swap_s, bwd_peer_s, bwd_message_s;
  double delay_s = 0;

  bool ForwardFits(int first, int end) const { return Fits(forward_bytes, fwd_input, first, end); }
  bool BackwardFits(int first, int end) const {
    return Fits(backward_bytes, bwd_input, first, end);
  }

  std::vector<int64_t> forward_bytes, backward_bytes;  // running sums of peak less input
  std::vector<int64_t> fwd_input, bwd_input;           // of one microbatch
  int64_t memory_bytes = 0;

 private:
  bool Fits(const std::vector<int64_t>& sums, const std::vector<int64_t>& input, int first,
            int end) const {
    return sums[end] - sums[first] + input[first] <= memory_bytes;
  }
};

// REQUIRES: a checked profile and machine; sizes that divide `samples` and that the profile covers.
absl::StatusOr<PackCosts> MakePackCosts(const LayerProfile& profile, const Machine& machine,
                                        int64_t samples, int64_t u_fwd, int64_t u_bwd);

}  // namespace harmony::published
