#include "bench/paper/ablation.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/published_planner/ours/least_memory.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/moves.h"
#include "coordinator/planner/search/placement.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::paper {
namespace {

// No tensor that has another way takes one that takes so long.
constexpr Nanos kForbidden = Seconds(1'000'000);

bool IsPeerCopy(const command::Command& command) {
  const auto* copy = std::get_if<command::Transfer>(&command.body);
  return copy != nullptr && copy->source.device >= 0 && copy->destination.device >= 0 &&
         copy->source.device != copy->destination.device;
}

// Costs with one kind of command changed.
class ChangedCosts : public dispatch::CostModel {
 public:
  using Change = std::function<Nanos(const command::Command&, Nanos)>;
  ChangedCosts(std::unique_ptr<const dispatch::CostModel> base, Change change)
      : base_(std::move(base)), change_(std::move(change)) {}

  Nanos Duration(const command::Command& command) const override {
    return change_(command, base_->Duration(command));
  }
  plan::CoreSharing Cores() const override { return base_->Cores(); }

 private:
  const std::unique_ptr<const dispatch::CostModel> base_;
  const Change change_;
};

dispatch::CostFactory Changed(const dispatch::CostFactory& base, ChangedCosts::Change change) {
  return [base, change = std::move(change)](const plan::Plan& plan) {
    return std::make_unique<ChangedCosts>(base(plan), change);
  };
}

// What a group keeps from forward to backward, where it can.
struct Keeps {
  bool weights, stash, activations;
};
constexpr Keeps kAllKeeps[] = {{false, false, false}, {true, false, false}, {false, true, false},
                               {true, true, false},   {false, true, true},  {true, true, true}};

void Keep(const Keeps& keeps, const plan::Plan& plan, plan::LayerGroup* group) {
  group->keep_weights = keeps.weights && plan::CanKeepWeights(plan, *group);
  group->keep_stash = keeps.stash && plan::CanKeepStash(plan, *group);
  group->keep_activations =
      keeps.activations && group->keep_stash && plan::CanKeepActivations(plan, *group);
}

class Ablation {
 public:
  Ablation(const published::ImportedModel& imported, const plan::Plan& plan)
      : imported_(imported), plan_(plan), division_(planner::DivisionOf(plan)) {}

  std::vector<Ablated> Run() {
    Grouping();
    JustInTimeUpdates();
    PeerToPeer();
    Prefetch();
    FusedLastGroup();
    BalancedGroups();
    SeparatePacks();
    return std::move(rows_);
  }

 private:
  struct Variant {
    plan::Plan plan;
    dispatch::CostFactory costs;  // empty: the model's
    // Weights and gradients go over the links so many times.
    int64_t times = 1;
    // None: the imported one.
    std::optional<plan::MachineSpec> machine;
  };

  Variant Same() const { return {plan_, nullptr, 1, std::nullopt}; }

  void Try(const Variant& variant, Ablated& best) const {
    const plan::MachineSpec& machine = variant.machine ? *variant.machine : imported_.machine;
    const planner::PlanBuilder builder(imported_.model, imported_.job, machine,
                                       plan_.microbatch_size, division_);
    plan::Plan plan = variant.plan;
    plan.devices = builder.Blank().devices;
    planner::StepExecutions step;
    if (!builder.Complete(&plan, &step) || !plan::CheckPlan(imported_.model, plan).ok()) return;
    const dispatch::CostFactory& costs = variant.costs ? variant.costs : imported_.costs;
    const absl::StatusOr<planner::Estimate> estimate =
        planner::EvaluatePlan(imported_.model, plan, *costs(plan));
    if (!estimate.ok() || (best.fits && best.step <= estimate->step)) return;
    best.fits = true;
    best.step = estimate->step;
    best.host_link_bytes = 0;
    for (size_t traffic = 0; traffic < estimate->bytes.size(); ++traffic) {
      const auto of = static_cast<command::TrafficClass>(traffic);
      const bool again =
          of == command::TrafficClass::kWeights || of == command::TrafficClass::kGradients;
      best.host_link_bytes += estimate->bytes[traffic] * (again ? variant.times : 1);
    }
  }

  void Add(std::string what, const std::vector<Variant>& variants) {
    Ablated row;
    row.what = std::move(what);
    for (const Variant& variant : variants) Try(variant, row);
    rows_.push_back(std::move(row));
  }

  // Each microbatch passes all groups before the next one does, so that a device loads the weights,
  // and the host adds up the gradients, once for each. The copies are where they are, and so much
  // longer: what could stay on a device from one microbatch to the next is loaded as well, and that
  // adding up costs the host time is left out.
  void Grouping() {
    Variant variant = Same();
    plan::Plan& plan = variant.plan;
    plan.microbatches_per_forward_task = 1;
    for (plan::LayerGroup& group : plan.backward_groups) {
      variant.times = std::max<int64_t>(variant.times, plan.entry_microbatches(group));
      group.keep_weights = false;
    }
    variant.costs = Changed(
        imported_.costs, [times = variant.times](const command::Command& command, Nanos duration) {
          const auto* copy = std::get_if<command::Transfer>(&command.body);
          if (copy == nullptr) return duration;
          const bool again = copy->traffic == command::TrafficClass::kWeights ||
                             copy->traffic == command::TrafficClass::kGradients;
          return again ? duration * times : duration;
        });
    Add("grouping of microbatches", {variant});
  }

  void JustInTimeUpdates() {
    if (plan_.update == job::UpdateMode::kDeferred) return;
    Variant variant = Same();
    variant.plan.update = job::UpdateMode::kDeferred;
    Add("just-in-time updates", {variant});
  }

  // Every tensor goes by way of the host, where stashes have to lie that are made on another
  // device.
  void PeerToPeer() {
    if (plan_.devices.size() == 1) return;
    Variant variant = Same();
    variant.plan.pass_weights = false;
    variant.costs = Changed(imported_.costs, [](const command::Command& command, Nanos duration) {
      return IsPeerCopy(command) ? kForbidden : duration;
    });
    Variant stashes_on_host = variant;
    for (plan::LayerGroup& group : stashes_on_host.plan.backward_groups) {
      group.keep_stash = group.keep_activations = false;
    }
    Add("P2P", {variant, stashes_on_host});
  }

  // What comes early needs memory beside what is used: each device has just what its largest group
  // needs, and one slot of each streaming buffer.
  void Prefetch() {
    Variant variant = Same();
    variant.plan.stream_slots = 1;
    const std::vector<Bytes> least = published::LeastMemory(imported_.model, variant.plan);
    variant.machine = imported_.machine;
    for (size_t d = 0; d < least.size(); ++d) {
      Bytes& memory = variant.machine->devices[d].memory;
      memory = std::min(memory, least[d]);
    }
    Add("prefetch", {variant});
  }

  // All but the loss is recomputed, or kept, as of any other group.
  void FusedLastGroup() {
    const plan::LayerGroup last = plan_.backward_groups.back();
    if (last.layers.count() == 1) return;
    std::vector<Variant> variants;
    for (const Keeps& keeps : kAllKeeps) {
      Variant variant = Same();
      plan::Plan& plan = variant.plan;
      plan.backward_groups.back().layers.last = last.layers.last - 1;
      plan::LayerGroup loss = last;
      loss.layers.first = last.layers.last;
      loss.keep_weights = loss.keep_activations = false;
      plan.forward_groups.push_back({plan.backward_groups.back().layers, last.devices});
      plan.backward_groups.push_back(loss);
      Keep(keeps, plan, &plan.backward_groups[plan.backward_groups.size() - 2]);
      variants.push_back(std::move(variant));
    }
    Add("the fused last group", variants);
  }

  // Groups of equally many layers, as many as the plan has or so many more that they fit, taken by
  // the devices in turn.
  void BalancedGroups() {
    planner::MoveRules rules;
    planner::SetDeviceChoices(
        planner::PlanBuilder(imported_.model, imported_.job, imported_.machine,
                             plan_.microbatch_size, division_)
            .DeviceChoices(),
        &rules);
    const int layers = imported_.model.num_layers();
    const int now = static_cast<int>(plan_.backward_groups.size());
    std::vector<Variant> variants;
    for (int groups : {now, now * 5 / 4, now * 3 / 2, now * 2, now * 3, layers}) {
      if (groups > layers) continue;
      for (const Keeps& keeps : kAllKeeps) {
        Variant variant = Same();
        plan::Plan& plan = variant.plan;
        plan.backward_groups.clear();
        for (int g = 0; g < groups; ++g) {
          plan.backward_groups.emplace_back().layers = {layers * g / groups,
                                                        layers * (g + 1) / groups - 1};
        }
        planner::WrapAround(rules, 0, &plan.backward_groups);
        planner::MirrorForward(&plan);
        for (plan::LayerGroup& group : plan.backward_groups) Keep(keeps, plan, &group);
        variants.push_back(std::move(variant));
      }
    }
    Add("balanced groups (equally many layers)", variants);
  }

  void SeparatePacks() {
    Variant variant = Same();
    planner::MirrorForward(&variant.plan);
    planner::FitForward(&variant.plan);
    Add("separate forward and backward packs", {variant});
  }

  const published::ImportedModel& imported_;
  const plan::Plan& plan_;
  planner::Division division_;
  std::vector<Ablated> rows_;
};

}  // namespace

std::vector<Ablated> SwitchOff(const published::ImportedModel& imported, const plan::Plan& plan) {
  return Ablation(imported, plan).Run();
}

}  // namespace harmony::paper
