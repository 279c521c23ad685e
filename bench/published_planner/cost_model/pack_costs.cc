#include "bench/published_planner/cost_model/pack_costs.h"

#include "common/base/status.h"

namespace harmony::published {
namespace {

template <typename T>
RunningSum Sums(const std::vector<T>& values, double scale = 1) {
  RunningSum sums{std::vector<double>(values.size() + 1)};
  for (size_t l = 0; l < values.size(); ++l) {
    sums.before[l + 1] = sums.before[l] + static_cast<double>(values[l]) * scale;
  }
  return sums;
}

std::vector<double> Scaled(const std::vector<int64_t>& bytes, double scale) {
  std::vector<double> seconds(bytes.size());
  for (size_t l = 0; l < bytes.size(); ++l) seconds[l] = static_cast<double>(bytes[l]) * scale;
  return seconds;
}

void FillMemory(const PhaseAt& at, const std::vector<int64_t>& input_per_sample, int64_t u,
                std::vector<int64_t>* sums, std::vector<int64_t>* input) {
  sums->assign(input_per_sample.size() + 1, 0);
  input->resize(input_per_sample.size());
  for (size_t l = 0; l < input_per_sample.size(); ++l) {
    (*input)[l] = u * input_per_sample[l];
    (*sums)[l + 1] = (*sums)[l] + at.peak_bytes[l] - (*input)[l];
  }
}

}  // namespace

absl::StatusOr<PackCosts> MakePackCosts(const LayerProfile& profile, const Machine& machine,
                                        int64_t samples, int64_t u_fwd, int64_t u_bwd) {
  HARMONY_ASSIGN_OR_RETURN(const PhaseAt forward, At(profile.forward, "fwd", u_fwd));
  HARMONY_ASSIGN_OR_RETURN(const PhaseAt recompute, At(profile.forward, "fwd", u_bwd));
  HARMONY_ASSIGN_OR_RETURN(const PhaseAt backward, At(profile.backward, "bwd", u_bwd));
  PackCosts costs;
  costs.layers = profile.layers();
  costs.u_fwd = u_fwd;
  costs.u_bwd = u_bwd;
  costs.fwd_microbatches = samples / u_fwd;
  costs.bwd_microbatches = samples / u_bwd;
  costs.forward_s = Sums(forward.time_s);
  costs.recompute_s = Sums(recompute.time_s);
  costs.backward_s = Sums(backward.time_s);
  std::vector<int64_t> weights = profile.param_bytes;
  for (size_t l = 0; l < weights.size(); ++l) weights[l] += profile.buffer_bytes[l];
  costs.weights_s = Sums(weights, 1 / machine.swap_bytes_per_s);
  costs.weight_bytes = Sums(weights);
  costs.update_s = Sums(profile.update_time_s);
  const std::vector<int64_t>& input = profile.input_bytes_per_sample;
  const auto f = static_cast<double>(u_fwd), b = static_cast<double>(u_bwd);
  costs.fwd_swap_s = Scaled(input, f / machine.swap_bytes_per_s);
  costs.bwd_swap_s = Scaled(input, b / machine.swap_bytes_per_s);
  costs.fwd_peer_s = Scaled(input, f / machine.peer_bytes_per_s);
  costs.bwd_peer_s = Scaled(input, b / machine.peer_bytes_per_s);
  costs.bwd_message_s = Scaled(input, 2 * b / machine.host_message_bytes_per_s);
  costs.delay_s = machine.task_delay_s;
  costs.memory_bytes = machine.memory_bytes;
  FillMemory(forward, input, u_fwd, &costs.forward_bytes, &costs.fwd_input);
  FillMemory(backward, input, u_bwd, &costs.backward_bytes, &costs.bwd_input);
  return costs;
}

}  // namespace harmony::published
