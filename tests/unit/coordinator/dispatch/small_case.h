#pragma once

// A model of three layers (embedding, one block, head), a plan for two devices, and a clock that
// counts in whole units, for tests that compare with exact tables.

#include <utility>
#include <vector>

#include "common/model/families/causal_lm.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/issue/dispatcher.h"
#include "gtest/gtest.h"

namespace harmony::dispatch {

// Of a sequence: the hidden states of one take a slot without gaps.
inline constexpr int64_t kSmallTokens = 8;

inline model::ModelSpec SmallModel(int blocks = 1, bool tied = false, DType weights = DType::kF32) {
  model::ModelConfig config;
  config.family = model::Family::kLlama;
  config.model_type = "llama";
  config.vocab_size = 32;
  config.hidden_size = 8;
  config.num_layers = blocks;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 4;
  config.intermediate_size = 16;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  return model::BuildModelSpec(config, kSmallTokens, weights);
}

// One layer a group, group g on device g mod `devices`.
inline plan::Plan SmallPlan(const model::ModelSpec& model, int devices,
                            job::UpdateMode update = job::UpdateMode::kEager) {
  plan::Plan plan;
  plan.num_microbatches = 2;
  plan.microbatch_size = 1;
  plan.sequence_length = kSmallTokens;
  plan.update = update;
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    plan.backward_groups.push_back({{layer, layer}, layer % devices});
  }
  plan.forward_groups.assign(plan.backward_groups.begin(), plan.backward_groups.end() - 1);
  plan.boundary_banks = devices + 1;
  plan.devices.assign(devices, {KiB(64), KiB(32)});
  plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  return plan;
}

enum class Mode { kPipeline, kData };

// In data mode all groups are on as many of the devices as divide the replicas.
inline plan::Plan ReplicaPlan(const model::ModelSpec& model, Mode mode, int devices, int replicas,
                              int microbatches = 4, int parts = 0) {
  plan::Plan plan = SmallPlan(model, mode == Mode::kData ? 1 : devices);
  for (auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (plan::LayerGroup& group : *groups) {
      if (mode == Mode::kData) group.devices = plan::DeviceSet::All(devices, replicas);
    }
  }
  plan.replicas = replicas;
  for (plan::LayerGroup& group : plan.backward_groups) {
    group.gradient_parts = parts > 0 ? parts : replicas;
  }
  plan.num_microbatches = microbatches;
  plan.devices.assign(devices, {KiB(64), KiB(32)});
  plan.gradient_ring = plan::ArenaLayout::MinimalRing(model, plan);
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  return plan;
}

// A forward takes 2 units, a backward 4, everything else 1.
class UnitCosts : public CostModel {
 public:
  Nanos Duration(const command::Command& command) const override {
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr) return Nanos(1);
    return Nanos(task->kind == command::TaskKind::kForward ? 2 : 4);
  }
};

// All commands of the first step, or of what the records leave of it, to a dispatcher that is told
// that each has completed.
inline std::vector<command::Command> CommandsOfOneStep(
    const model::ModelSpec& model, const plan::Plan& plan, const CostModel& costs,
    absl::Span<const command::ObjectView> records = {}) {
  Dispatcher dispatcher(model, plan, costs, {.first_step = 0, .end_step = 1});
  const absl::Status begun = dispatcher.BeginGeneration(1, records);
  EXPECT_TRUE(begun.ok()) << begun;
  std::vector<command::Command> all;
  while (begun.ok() && !dispatcher.done()) {
    absl::StatusOr<std::vector<command::Command>> commands = dispatcher.NextCommands();
    EXPECT_TRUE(commands.ok()) << commands.status();
    if (!commands.ok() || commands->empty()) break;
    for (command::Command& command : *commands) {
      dispatcher.OnLaneProgress(static_cast<int>(command.header.lane), command.header.signal_value);
      all.push_back(std::move(command));
    }
  }
  EXPECT_TRUE(dispatcher.done());
  return all;
}

}  // namespace harmony::dispatch
