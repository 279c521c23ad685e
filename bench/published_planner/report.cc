#include "bench/published_planner/report.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/status.h"
#include "common/plan/plan_json.h"

namespace harmony::published {
namespace {

using Json = nlohmann::ordered_json;

Json PacksJson(const std::vector<Pack>& packs) {
  Json json = Json::array();
  for (const Pack& pack : packs) json.push_back({pack.first, pack.last});
  return json;
}

Json GroupsJson(const std::vector<plan::LayerGroup>& groups) {
  Json json = Json::array();
  for (const plan::LayerGroup& group : groups)
    json.push_back({group.layers.first, group.layers.last});
  return json;
}

Json CaseJson(const Case& of, const char* cost_model) {
  return {{"cost_model", cost_model},
          {"model", of.profile.model},
          {"mode", std::string(ToString(of.mode))},
          {"gpus", of.machine.gpus},
          {"minibatch", of.minibatch},
          {"memory_bytes", of.machine.memory_bytes}};
}

void AddSearch(const SearchFigures* search, double time_s, Json* json) {
  if (search == nullptr) return;
  (*json)["lower_bound_s"] = search->lower_bound_s;
  (*json)["gap"] = time_s / search->lower_bound_s - 1;
  (*json)["search_s"] = search->seconds;
  (*json)["evaluations"] = search->evaluations;
  (*json)["sizes"] = search->sizes;
}

// The whole plan: that of a data-parallel step is known by the part of one GPU.
plan::Plan WholePlan(const Case& of, plan::Plan plan) {
  if (of.mode != Mode::kDataParallel) return plan;
  plan.replicas = of.machine.gpus;
  plan.num_microbatches *= plan.replicas;
  plan.devices.resize(static_cast<size_t>(plan.replicas), plan.devices.front());
  const plan::DeviceSet all = plan::DeviceSet::First(plan.replicas);
  for (plan::LayerGroup& group : plan.forward_groups) group.devices = all;
  for (plan::LayerGroup& group : plan.backward_groups) group.devices = all;
  return plan;
}

}  // namespace

absl::StatusOr<std::string> PublishedReport(const Case& of, const Schedule& schedule,
                                            const SearchFigures* search) {
  const auto simulate = [&](Prefetch prefetch) {
    return Simulate(of.profile, of.machine, of.mode, of.minibatch, schedule, prefetch);
  };
  HARMONY_ASSIGN_OR_RETURN(const Estimate estimate, simulate(Prefetch::kOff));
  HARMONY_ASSIGN_OR_RETURN(const Estimate prefetch, simulate(Prefetch::kOn));
  HARMONY_ASSIGN_OR_RETURN(const PackMemory memory, MaxPackMemory(of.profile, schedule));
  Json json = CaseJson(of, "published");
  json.update(
      {{"u_fwd", schedule.u_fwd},
       {"pack_fwd", PacksJson(schedule.forward)},
       {"u_bwd", schedule.u_bwd},
       {"pack_bwd", PacksJson(schedule.backward)},
       {"est_time_s", estimate.time_s},
       {"est_time_prefetch_s", prefetch.time_s},
       {"per_rank_end_s", estimate.gpu_end_s},
       {"fits", std::max(memory.forward_bytes, memory.backward_bytes) <= of.machine.memory_bytes},
       {"max_pack_memory_fwd_bytes", memory.forward_bytes},
       {"max_pack_memory_bwd_bytes", memory.backward_bytes},
       {"swap_in_bytes", estimate.swap_in_bytes},
       {"swap_out_bytes", estimate.swap_out_bytes},
       {"swap_bytes", estimate.swap_in_bytes + estimate.swap_out_bytes},
       {"p2p_bytes", estimate.peer_bytes},
       {"allreduce_bytes", estimate.allreduce_bytes}});
  AddSearch(search, estimate.time_s, &json);
  return json.dump(2);
}

std::string OwnReport(const Case& of, const plan::Plan& plan,
                      const harmony::planner::Estimate& estimate, bool fits,
                      const SearchFigures* search) {
  Json json = CaseJson(of, "harmony");
  json.update(
      {{"u_fwd", plan.forward_size()},
       {"pack_fwd", GroupsJson(plan.forward_groups)},
       {"u_bwd", plan.microbatch_size},
       {"pack_bwd", GroupsJson(plan.backward_groups)},
       {"step_s", estimate.step.seconds()},
       {"fits", fits},
       {"swap_bytes", std::accumulate(estimate.bytes.begin(), estimate.bytes.end(), int64_t{0})},
       {"p2p_bytes", estimate.peer_bytes},
       {"plan", Json::parse(plan::PlanFileText(WholePlan(of, plan)))}});
  AddSearch(search, estimate.step.seconds(), &json);
  return json.dump(2);
}

}  // namespace harmony::published
