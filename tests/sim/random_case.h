#pragma once

// A random small model, a random plan for it (tight memory more often than not) and random options
// of a simulation, all from one seed.

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/model/families/causal_lm.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/dispatch/graph/group_executions.h"
#include "coordinator/dispatch/memory/kept_layout.h"
#include "tests/sim/simulator/simulation.h"

namespace harmony::sim {

struct RandomCase {
  model::ModelSpec model;
  plan::Plan plan;
  SimOptions options;
  std::unique_ptr<dispatch::AnalyticCosts> costs;
};

// Of a sequence: the hidden states of one take a slot without gaps.
inline constexpr int64_t kRandomTokens = 8;

inline model::ModelSpec RandomModel(CounterRandom& random, uint64_t seed) {
  model::ModelConfig config;
  config.family = random.Below(2) == 0 ? model::Family::kGpt2 : model::Family::kLlama;
  config.model_type = config.family == model::Family::kGpt2 ? "gpt2" : "llama";
  config.vocab_size = 16 + static_cast<int64_t>(random.Below(64));
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 4;
  config.hidden_size = 8;
  config.intermediate_size = 16 + 8 * static_cast<int64_t>(random.Below(4));
  config.max_position_embeddings = 32;
  config.num_layers = static_cast<int64_t>(random.Below(6));
  config.tie_word_embeddings = random.Below(2) == 0;
  // Now and then in mixed precision, with gradients of either type.
  CounterRandom precision(seed, 5);
  const bool narrow = precision.Below(4) == 0;
  model::ModelSpec model =
      model::BuildModelSpec(config, kRandomTokens, narrow ? DType::kBF16 : DType::kF32);
  if (narrow && precision.Below(3) > 0) model::StoreGradientsAs(DType::kBF16, model);
  return model;
}

// The same chain with boundaries of different sizes, some of several tensors, a cost of its own for
// each layer, and a mask that skips ahead to some of them.
inline void MakeUneven(CounterRandom random, model::ModelSpec& model) {
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kI64};
  const int layers = model.num_layers();
  const bool several = random.Below(2) == 0;
  for (int b = 1; b < layers; ++b) {
    const int64_t slots = 1 + static_cast<int64_t>(random.Below(6));
    model.boundaries[b] = {{"values", DType::kU8, {slots * kSlotAlignment}}};
    model.boundaries[b][0].dtype = DType::kF8E4M3;
    for (uint64_t more = several ? random.Below(3) : 0; more > 0; --more) {
      const int64_t numbers = 1 + static_cast<int64_t>(random.Below(200));
      model.boundaries[b].push_back({"more", kTypes[random.Below(3)], {numbers}});
    }
  }
  model::BatchInput mask{{"mask", DType::kBool, {37}}, 0, {}};
  model.costs.clear();
  for (model::LayerSpec& layer : model.layers) {
    if (random.Below(3) == 0) mask.layers.push_back(layer.index);
    layer.cost = layer.index;
    model::LayerCost& cost = model.costs.emplace_back();
    cost.forward_flops = static_cast<double>(1 + random.Below(20'000));
    cost.recompute =
        layer.index % 3 == 1 ? model::Recompute::kAlways : model::Recompute::kUnlessKept;
    cost.kept_tensors = {
        model::BytesBySamples::Of(Bytes(1 + static_cast<int64_t>(random.Below(500))))};
  }
  model.inputs.push_back(std::move(mask));
}

// Cuts [0, layers) into consecutive groups.
inline std::vector<plan::LayerGroup> RandomGroups(CounterRandom& random, int layers, int devices,
                                                  int placement) {
  std::vector<plan::LayerGroup> groups;
  for (int first = 0; first < layers;) {
    const int count = 1 + static_cast<int>(random.Below(std::min<uint64_t>(3, layers - first)));
    plan::LayerGroup group;
    group.layers = {first, first + count - 1};
    const int index = static_cast<int>(groups.size());
    group.devices = placement == 0 ? index % devices : static_cast<int>(random.Below(devices));
    groups.push_back(group);
    first += count;
  }
  return groups;
}

// One replica as often as not; else several.
inline void DrawReplicas(CounterRandom& random, plan::Plan& plan) {
  if (random.Below(2) == 0) return;
  plan.replicas = 1 << random.Below(3);
  if (random.Below(4) == 0) plan.replicas *= 4;
  plan.num_microbatches = plan.replicas * (1 + static_cast<int>(random.Below(3)));
}

// Some devices, each for one or several of the set's entries, which divide the replicas.
inline plan::DeviceSet RandomSet(CounterRandom& random, int devices, int replicas) {
  int size = 1;
  while (size < replicas && random.Below(3) > 0) size *= 2;
  std::vector<int> order(devices);
  for (int d = 0; d < devices; ++d) order[d] = d;
  for (int d = devices - 1; d > 0; --d) std::swap(order[d], order[random.Below(d + 1)]);
  std::vector<int> set;
  for (int i = 0, device = 0; i < size; ++i) {
    if (i > 0 && device + 1 < devices && random.Below(3) > 0) ++device;
    set.push_back(order[device]);
  }
  return plan::DeviceSet::Of(set);
}

// Where there are replicas, groups have one device each, or all the same devices, as many as divide
// the replicas, or each its own set.
inline void DrawDeviceSets(CounterRandom& random, plan::Plan& plan) {
  const int devices = static_cast<int>(plan.devices.size());
  const uint64_t kind = plan.replicas == 1 ? 0 : random.Below(4);
  if (kind == 0) return;
  const plan::DeviceSet all = plan::DeviceSet::All(devices, plan.replicas);
  const bool twins = random.Below(2) == 0;
  for (plan::LayerGroup& group : plan.backward_groups) {
    group.devices = kind == 1 ? all : RandomSet(random, devices, plan.replicas);
  }
  for (plan::LayerGroup& group : plan.forward_groups) {
    group.devices = kind == 1 ? all
                    : twins   ? plan::BackwardGroupOf(plan, group.layers.first).devices
                              : RandomSet(random, devices, plan.replicas);
  }
}

inline void DrawForwardTasks(CounterRandom& random, const model::ModelSpec& model,
                             plan::Plan& plan) {
  if (random.Below(2) == 0 || !plan::LargerForwardTasksAllowed(model, plan)) return;
  int entries = 1;
  for (const auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const plan::LayerGroup& group : *groups) entries = std::max(entries, group.devices.size());
  }
  const int each = plan.num_microbatches / entries;
  plan.microbatches_per_forward_task = 1 + static_cast<int>(random.Below(each));
  while (each % plan.microbatches_per_forward_task != 0) --plan.microbatches_per_forward_task;
}

// In how many parts the gradients of each backward group leave: of tied blocks in as many. Whether
// devices of one root pass weights on.
inline void DrawParts(CounterRandom& random, const model::ModelSpec& model, plan::Plan& plan) {
  CounterRandom parts(random.Next64(), 6);
  for (plan::LayerGroup& group : plan.backward_groups) {
    group.gradient_parts = group.devices.size();
    while (group.gradient_parts < plan.replicas && parts.Below(2) == 0) group.gradient_parts *= 2;
  }
  // Or fewer, which the devices add up among themselves.
  const bool among_devices = parts.Below(2) == 0;
  for (plan::LayerGroup& group : plan.backward_groups) {
    if (!among_devices || group.gradient_parts > group.devices.size()) continue;
    do {
      group.gradient_parts /= 2;
    } while (group.gradient_parts > 1 && parts.Below(3) > 0);
    group.gradient_parts = std::max(group.gradient_parts, 1);
    while (!plan::CanAddUp(plan, group, group.gradient_parts)) group.gradient_parts *= 2;
  }
  plan::TieParts(model, plan);
  plan.pass_weights = parts.Below(2) == 0;
}

// Room for the largest execution on each device, and for what is kept; memory of this size, or
// more.
inline void DrawDevices(CounterRandom& random, const model::ModelSpec& model, plan::Plan& plan) {
  auto need = [&](dispatch::ExecutionKind kind, int group) {
    const plan::LayerGroup& of = dispatch::PlannedGroup(plan, kind, group);
    for (int shard = 0; shard < of.devices.num_shards(); ++shard) {
      dispatch::GroupExecution execution =
          dispatch::PlannedExecution(model, plan, kind, group, shard);
      plan::DevicePlan& device = plan.devices[execution.device];
      device.resident = std::max(device.resident,
                                 dispatch::TotalOf(dispatch::LayOutItems(model, plan, execution)));
    }
  };
  const int groups = static_cast<int>(plan.backward_groups.size());
  for (size_t f = 0; f < plan.forward_groups.size(); ++f) {
    need(dispatch::ExecutionKind::kForward, static_cast<int>(f));
  }
  for (int g = 0; g < groups; ++g) {
    need(g + 1 == groups ? dispatch::ExecutionKind::kFused : dispatch::ExecutionKind::kBackward, g);
  }
  const dispatch::KeptLayout kept(model, plan);
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    plan::DevicePlan& device = plan.devices[d];
    device.resident += kept.bytes(static_cast<int>(d));
    const uint64_t slack = random.Below(3);  // none, some, plenty
    device.resident += Bytes(device.resident.count() * static_cast<int64_t>(slack) *
                             static_cast<int64_t>(random.Below(100)) / 100);
    device.memory = device.resident;
    device.root = static_cast<int>(random.Below(3));
  }
}

inline plan::Plan RandomPlan(CounterRandom& random, const model::ModelSpec& model) {
  plan::Plan plan;
  const int devices = 1 + static_cast<int>(random.Below(random.Below(4) == 0 ? 8 : 4));
  plan.devices.resize(devices);
  plan.num_microbatches = 1 + static_cast<int>(random.Below(6));
  DrawReplicas(random, plan);
  plan.microbatch_size = 1 + static_cast<int64_t>(random.Below(2));
  plan.optimizer_moments = random.Below(4) == 0 ? 0 : 2;
  plan.sequence_length = kRandomTokens;
  plan.gradient_dtype = model.gradient_dtype;
  const int placement = static_cast<int>(random.Below(3));
  plan.backward_groups = RandomGroups(random, model.num_layers(), devices, placement);
  const int fused_first = plan.backward_groups.back().layers.first;
  if (random.Below(3) == 0) {
    plan.forward_groups = RandomGroups(random, fused_first, devices, placement);
  } else {
    plan.forward_groups.assign(plan.backward_groups.begin(), plan.backward_groups.end() - 1);
  }
  DrawDeviceSets(random, plan);
  DrawForwardTasks(random, model, plan);
  for (plan::LayerGroup& group : plan.backward_groups) {
    group.keep_weights = plan::CanKeepWeights(plan, group) && random.Below(3) == 0;
    group.keep_stash = plan::CanKeepStash(plan, group) && random.Below(3) == 0;
    if (plan::CanKeepActivations(plan, group) && random.Below(3) == 0) {
      group.keep_stash = group.keep_activations = true;
    }
  }
  DrawParts(random, model, plan);
  plan.update = random.Below(2) == 0 ? job::UpdateMode::kEager : job::UpdateMode::kDeferred;
  plan.clip = plan.update == job::UpdateMode::kDeferred && random.Below(2) == 0;
  plan.stream_slots = 1 + static_cast<int>(random.Below(3));
  plan.boundary_banks = 2 + static_cast<int>(random.Below(4));
  plan.gradient_ring = plan::ArenaLayout::MinimalRing(model, plan);
  if (random.Below(2) == 0) plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
  DrawDevices(random, model, plan);
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  return plan;
}

// Nothing happens to processes, and nobody stops the job.
inline void RemoveFaults(SimOptions& options) {
  options.kills = options.stops = options.hangs = 0;
  options.stream_losses = options.refusals = options.failures = 0;
  options.stop_at_event = -1;
}

inline RandomCase MakeRandomCase(uint64_t seed) {
  CounterRandom random(seed, 2);
  RandomCase result;
  result.model = RandomModel(random, seed);
  if (seed % 3 == 0) MakeUneven(CounterRandom(seed, 3), result.model);
  result.plan = RandomPlan(random, result.model);
  std::vector<plan::DeviceSpec> devices(result.plan.devices.size());
  for (plan::DeviceSpec& device : devices) {
    // Durations of tasks and copies of the same order, so that all kinds of races happen.
    device.flops = {1e9 * (1 + static_cast<double>(random.Below(20)))};
    device.h2d = device.d2h = device.p2p = {1e8 * (1 + static_cast<double>(random.Below(20)))};
  }
  result.costs = std::make_unique<dispatch::AnalyticCosts>(result.model, result.plan, devices);
  SimOptions& options = result.options;
  options.seed = seed;
  options.end_step = 1 + static_cast<int64_t>(random.Below(4));
  options.save_steps = static_cast<int64_t>(random.Below(3));
  options.window = random.Below(3) == 0 ? 2 : 64;
  options.jitter = true;
  options.kills = static_cast<int>(random.Below(5));
  if (random.Below(8) == 0) options.hangs = 1 + static_cast<int>(random.Below(2));
  CounterRandom refusals(seed, 4);
  if (refusals.Below(4) == 0) options.refusals = 1 + static_cast<int>(refusals.Below(4));
  // As often as not, none of these: what kills alone bring about is not to be hidden behind them.
  CounterRandom others(seed, 7);
  options.set_up = others.Below(2) == 0;
  if (others.Below(4) == 0) options.stops = 1 + static_cast<int>(others.Below(4));
  if (others.Below(4) == 0) options.stream_losses = 1 + static_cast<int>(others.Below(3));
  if (others.Below(4) == 0) options.failures = 1 + static_cast<int>(others.Below(3));
  if (others.Below(4) == 0) {
    for (size_t d = 0; d < devices.size(); ++d) {
      if (others.Below(3) > 0) options.worker_copies.insert(static_cast<int>(d));
    }
  }
  const int64_t tasks =
      result.plan.num_microbatches *
      static_cast<int64_t>(result.plan.forward_groups.size() + result.plan.backward_groups.size());
  options.fault_events =
      (tasks * 4 + 20) * options.end_step / (1 + static_cast<int64_t>(random.Below(3)));
  options.message_delay = Nanos(1000 + static_cast<int64_t>(random.Below(200'000)));
  if (random.Below(10) == 0) options.stop_at_event = 1 + static_cast<int64_t>(random.Below(400));
  return result;
}

}  // namespace harmony::sim
