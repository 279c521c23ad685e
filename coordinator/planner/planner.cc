#include "coordinator/planner/planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/arena_layout.h"
#include "coordinator/planner/device_need.h"
#include "coordinator/planner/grouping.h"
#include "coordinator/planner/residency.h"
#include "coordinator/sim/simulation.h"

namespace harmony {
namespace {

constexpr int64_t kLargestAutoMicrobatch = 8;
constexpr int kMostCandidates = 16;  // that are simulated
constexpr int64_t kResidentGranule = 4096;

class Planner {
 public:
  Planner(const ModelSpec& model, const JobSpec& job, const MachineSpec& machine, CostFactory costs)
      : model_(model),
        job_(job),
        machine_(machine),
        costs_(costs ? std::move(costs) : AnalyticCostFactory(model, machine.devices)) {}

  absl::StatusOr<Plan> Run() {
    HARMONY_RETURN_IF_ERROR(CheckKeys());
    if (!job_.layer_groups.empty()) {
      HARMONY_ASSIGN_OR_RETURN(fixed_, FixedPartition(model_, job_.layer_groups));
    }
    for (int64_t size : MicrobatchSizes()) {
      std::optional<Plan> plan = BestPlan(size);
      if (!plan) continue;
      HARMONY_RETURN_IF_ERROR(CheckHost(*plan));
      return *std::move(plan);
    }
    return DoesNotFit();
  }

 private:
  struct Candidate {
    Plan plan;
    bool small_ring = false;  // keeps the arena at 14 bytes a parameter
    Nanos time;
  };

  absl::Status CheckKeys() const {
    if (machine_.devices.empty()) return absl::InvalidArgumentError("devices: there is none");
    if (job_.mode != "auto" && job_.mode != "harmony-pp") {
      return absl::UnimplementedError(absl::StrCat("mode: ", job_.mode, " is not built yet"));
    }
    if (job_.micro_batch_size > 0 && job_.global_batch_size % job_.micro_batch_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat("micro_batch_size: ", job_.micro_batch_size,
                                                     " does not divide global_batch_size ",
                                                     job_.global_batch_size));
    }
    if (job_.update == UpdateMode::kEager && job_.max_grad_norm > 0) {
      return absl::InvalidArgumentError(
          "update: eager updates cannot be clipped (max_grad_norm): use auto or deferred");
    }
    return absl::OkStatus();
  }

  // Best first. Does not depend on the machine but for what fits: results depend on it.
  std::vector<int64_t> MicrobatchSizes() const {
    if (job_.micro_batch_size > 0) return {job_.micro_batch_size};
    std::vector<int64_t> sizes;
    const int64_t most = std::clamp<int64_t>(job_.global_batch_size / 4, 1, kLargestAutoMicrobatch);
    for (int64_t size = most; size >= 1; --size) {
      if (job_.global_batch_size % size == 0) sizes.push_back(size);
    }
    return sizes;
  }

  Plan PlanOf(const std::vector<LayerRange>& groups, int64_t microbatch, int slots) const {
    const int devices = static_cast<int>(machine_.devices.size());
    Plan plan;
    plan.microbatch_size = microbatch;
    plan.num_microbatches = static_cast<int>(job_.global_batch_size / microbatch);
    plan.sequence_length = job_.sequence_length;
    for (size_t g = 0; g < groups.size(); ++g) {
      LayerGroup& group = plan.backward_groups.emplace_back();
      group.layers = groups[g];
      group.device = static_cast<int>(g) % devices;
      group.keep_stash = job_.stash == StashPlacement::kDevice;
    }
    plan.forward_groups = plan.backward_groups;
    plan.forward_groups.pop_back();
    plan.update = job_.DeferredUpdates() ? UpdateMode::kDeferred : UpdateMode::kEager;
    plan.clip = job_.max_grad_norm > 0;
    plan.optimizer_moments = job_.optim == OptimizerKind::kAdamW ? 2 : 0;
    plan.stream_slots = slots;
    plan.boundary_banks = devices + 2;
    plan.gradient_ring = ArenaLayout::DefaultRing(model_, plan);
    plan.devices.resize(devices);
    for (int d = 0; d < devices; ++d) plan.devices[d].memory = machine_.devices[d].memory;
    for (const GroupNeed& need : NeedOfGroups(model_, plan)) {
      DevicePlan& device = plan.devices[need.device];
      const Bytes left = device.memory - need.workspace;
      const Bytes resident(std::max<int64_t>(left.count(), 0) / kResidentGranule *
                           kResidentGranule);
      device.resident =
          device.resident.count() == 0 ? resident : std::min(device.resident, resident);
    }
    for (DevicePlan& device : plan.devices) {  // without a group
      if (device.resident.count() == 0) device.resident = Bytes(0);
    }
    plan.arena_dynamic = ArenaLayout(model_, plan).dynamic_bytes();
    return plan;
  }

  bool Fits(const Plan& plan) const {
    const std::vector<GroupNeed> needs = NeedOfGroups(model_, plan);
    return std::all_of(needs.begin(), needs.end(), [&](const GroupNeed& need) {
      return need.resident() <= plan.devices[need.device].resident;
    });
  }

  // The partitions worth a simulation, coarse first.
  std::vector<std::vector<LayerRange>> Partitions(int64_t microbatch, int slots) const {
    if (!fixed_.empty()) return {fixed_};
    const int layers = model_.num_layers();
    const int devices = static_cast<int>(machine_.devices.size());
    const auto flops = CostTable(layers, [&](LayerRange range) {
      double sum = 0;
      for (int layer = range.first; layer <= range.last; ++layer) {
        sum += ForwardFlops(model_, layer, microbatch, job_.sequence_length);
      }
      return sum;
    });
    const auto memory = CostTable(layers, [&](LayerRange range) {
      Bytes sum = BackwardWorkspaceBytes(model_, range, microbatch, job_.sequence_length);
      for (int block : BlocksOf(model_, range, false)) sum += model_.blocks[block].size() * 2;
      return static_cast<double>(sum.count());
    });
    std::vector<std::vector<LayerRange>> result;
    auto consider = [&](std::vector<LayerRange> partition) {
      if (std::find(result.begin(), result.end(), partition) != result.end()) return;
      if (Fits(PlanOf(partition, microbatch, slots))) result.push_back(std::move(partition));
    };
    for (int groups = std::min(layers, devices);
         groups <= layers && static_cast<int>(result.size()) < kMostCandidates; ++groups) {
      consider(BalancedPartition(groups, flops));
      consider(BalancedPartition(groups, memory));
    }
    return result;
  }

  std::optional<Candidate> Try(Plan plan) const {
    const std::unique_ptr<CostModel> costs = costs_(plan);
    SimOptions options;
    options.end_step = 2;
    const SimResult result = Simulate(model_, plan, *costs, options);
    if (!result.status.ok()) return std::nullopt;
    Candidate candidate;
    candidate.time = result.finished;
    Bytes all;
    for (const ParamBlock& block : model_.blocks) {
      if (block.uses.size() == 1) all += block.size();
    }
    candidate.small_ring =
        plan.update != UpdateMode::kEager || ArenaLayout::MinimalRing(model_, plan) * 2 <= all;
    candidate.plan = std::move(plan);
    return candidate;
  }

  std::optional<Plan> BestPlan(int64_t microbatch) const {
    for (int slots : {2, 1}) {
      std::optional<Candidate> best;
      for (const std::vector<LayerRange>& partition : Partitions(microbatch, slots)) {
        Plan plan = PlanOf(partition, microbatch, slots);
        if (!Fits(plan)) continue;
        std::optional<Candidate> candidate = Try(std::move(plan));
        if (!candidate) continue;
        const auto rank = [](const Candidate& c) { return std::pair(!c.small_ring, c.time); };
        if (!best || rank(*candidate) < rank(*best)) best = std::move(candidate);
      }
      if (!best) continue;
      return KeepWeights(std::move(best->plan), [this](const Plan& plan) -> std::optional<Nanos> {
        const std::optional<Candidate> candidate = Fits(plan) ? Try(plan) : std::nullopt;
        return candidate ? std::optional(candidate->time) : std::nullopt;
      });
    }
    return std::nullopt;
  }

  absl::Status CheckHost(const Plan& plan) const {
    const Bytes need = ArenaLayout(model_, plan).end();
    if (machine_.host_memory.count() == 0 || need <= machine_.host_memory) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the host arena needs ", FormatBytesExact(need), ", host_memory is ",
                     FormatBytesExact(machine_.host_memory), ": ",
                     FormatBytesExact(need - machine_.host_memory), " too little"));
  }

  // Nothing fits: the worst group of the finest grouping, and what would do.
  absl::Status DoesNotFit() const {
    std::vector<LayerRange> finest = fixed_;
    for (int layer = 0; fixed_.empty() && layer < model_.num_layers(); ++layer) {
      finest.push_back({layer, layer});
    }
    const int64_t microbatch = MicrobatchSizes().back();
    const Plan plan = PlanOf(finest, microbatch, 1);
    // Room for it: the most resident and the most workspace of the groups of a device together.
    std::vector<Bytes> resident(plan.devices.size()), workspace(plan.devices.size());
    const std::vector<GroupNeed> needs = NeedOfGroups(model_, plan);
    for (const GroupNeed& need : needs) {
      resident[need.device] = std::max(resident[need.device], need.resident());
      workspace[need.device] = std::max(workspace[need.device], need.workspace);
    }
    for (const GroupNeed& need : needs) {
      const Bytes memory = plan.devices[need.device].memory;
      const Bytes room = resident[need.device] + workspace[need.device] + Bytes(kResidentGranule);
      if (need.resident() < resident[need.device] || room <= memory) continue;
      std::string text = absl::StrCat(
          KindName(need.kind), " of layers ", need.layers.first, " to ", need.layers.last,
          " does not fit device ", need.device, " (", FormatBytesExact(memory), "): weights ",
          FormatBytes(need.weights), ", gradients ", FormatBytes(need.gradients), ", activations ",
          FormatBytes(need.streaming), ", workspace ", FormatBytes(workspace[need.device]),
          need.kept.count() > 0
              ? absl::StrCat(", stashes of all its groups ", FormatBytes(need.kept))
              : "",
          "; ", FormatBytesExact(room - memory), " missing. It fits with mem=", room.count());
      if (const int64_t smaller = SmallerMicrobatch(finest, microbatch); smaller > 0) {
        absl::StrAppend(&text, ", or with micro_batch_size: ", smaller);
      }
      if (need.kept.count() > 0) absl::StrAppend(&text, ", or with stash: host");
      if (!fixed_.empty() && need.layers.count() > 1) {
        absl::StrAppend(&text, ", or with fewer layers in that group (layer_groups)");
      }
      return absl::ResourceExhaustedError(text);
    }
    return absl::InternalError(
        absl::StrCat("no plan runs under the simulator: ", DebugString(plan)));
  }

  int64_t SmallerMicrobatch(const std::vector<LayerRange>& groups, int64_t than) const {
    for (int64_t size = than - 1; size >= 1; --size) {
      if (job_.global_batch_size % size == 0 && Fits(PlanOf(groups, size, 1))) return size;
    }
    return 0;
  }

  const ModelSpec& model_;
  const JobSpec& job_;
  const MachineSpec& machine_;
  const CostFactory costs_;
  std::vector<LayerRange> fixed_;  // empty: the planner's choice
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const ModelSpec& model, const JobSpec& job,
                              const MachineSpec& machine, CostFactory costs) {
  return Planner(model, job, machine, std::move(costs)).Run();
}

}  // namespace harmony
