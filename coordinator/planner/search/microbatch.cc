#include "coordinator/planner/search/microbatch.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/base/limits.h"
#include "coordinator/planner/search/placement.h"
#include "coordinator/planner/search/seeds.h"

namespace harmony::planner {
namespace {

constexpr int kReferenceDevices = 4;
constexpr int64_t kLargestBlindMicrobatch = 8;
// The bound follows so many microbatches of a step and adds the others as work of the lanes, so
// that the comparison does not take longer for larger batches.
constexpr int kMostFollowed = 64;
// A larger size is preferred to one that is better by less than this.
constexpr double kWorthIt = 1.005;

// Every device of the reference machine costs what one of the real machine does. Cores that devices
// share are left out: how many at a time depends on how many there are.
class ReferenceCosts : public dispatch::CostModel {
 public:
  ReferenceCosts(int real_devices, int device, std::unique_ptr<dispatch::CostModel> costs)
      : lanes_(kReferenceDevices), real_(real_devices), device_(device), costs_(std::move(costs)) {}

  Nanos Duration(const command::Command& command) const override {
    command::Command real = command;
    command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
    if (!command::IsHostLane(lane)) lane.device = device_;
    // A single device has no peer: by way of the host, on every machine.
    if (lane.kind == command::LaneKind::kP2P) lane.kind = command::LaneKind::kD2H;
    real.header.lane = static_cast<uint32_t>(real_.IndexOf(lane));
    if (auto* copy = std::get_if<command::Transfer>(&real.body)) {
      const bool out = copy->source.device >= 0;
      copy->source.device = out ? device_ : -1;
      copy->destination.device = out ? -1 : device_;
    }
    return costs_->Duration(real);
  }

 private:
  command::LaneTable lanes_, real_;
  int device_;
  std::unique_ptr<dispatch::CostModel> costs_;
};

// Microbatches of a step that a bound follows: a multiple of a forward task's, where the others can
// be added (Bounds::OfPlan).
int Followed(const plan::Plan& plan) {
  const int all = plan.num_microbatches, task_microbatches = plan.microbatches_per_forward_task;
  if (all <= kMostFollowed || !AlikeMicrobatches(plan)) return 0;
  const int followed = std::max(kMostFollowed / task_microbatches, 4) * task_microbatches;
  return followed < all ? followed : 0;
}

// The least bound of the balanced plans of this size, on the reference machine.
std::optional<Nanos> ReferenceTime(const model::ModelSpec& model, const job::JobSpec& job,
                                   const plan::MachineSpec& machine, Division division,
                                   const dispatch::CostFactory& costs, int64_t size) {
  const auto largest = std::max_element(
      machine.devices.begin(), machine.devices.end(),
      [](const plan::DeviceSpec& a, const plan::DeviceSpec& b) { return a.memory < b.memory; });
  plan::MachineSpec reference;
  reference.devices.assign(kReferenceDevices, *largest);
  const PlanBuilder builder(model, job, reference, size, division);
  const PlanBuilder real(model, job, machine, size, division);
  const plan::Plan shape = builder.Blank(), real_shape = real.Blank();
  TaskCosts tasks(model, shape,
                  std::make_unique<ReferenceCosts>(
                      static_cast<int>(machine.devices.size()),
                      static_cast<int>(largest - machine.devices.begin()), costs(real_shape)));
  Bounds bounds(model, tasks);
  MoveRules rules;
  rules.update = false;
  rules.most_slots = 2;
  SetDeviceChoices(builder.DeviceChoices(), &rules);
  std::optional<Nanos> best;
  plan::Plan best_plan;
  const auto consider = [&](plan::Plan plan) {
    StepExecutions step;
    if (!builder.Complete(&plan, &step)) return;
    const Nanos time = bounds.OfPlan(plan, step, Followed(plan)).step;
    if (best && time >= *best) return;
    best = time;
    best_plan = std::move(plan);
  };
  for (const plan::Plan& seed : SeedPlans(builder, tasks, rules, {})) {
    for (plan::Plan& plan : WithSettings(seed, rules)) consider(std::move(plan));
  }
  if (!best) return best;
  for (int task_microbatches : builder.ForwardTaskSizes()) {
    plan::Plan plan = best_plan;
    plan.microbatches_per_forward_task = task_microbatches;
    consider(std::move(plan));
  }
  return best;
}

}  // namespace

int64_t LeastMicrobatch(const job::JobSpec& job) {
  return (job.global_batch_size + limits::kMostMicrobatches - 1) / limits::kMostMicrobatches;
}

std::vector<int64_t> MicrobatchSizes(const model::ModelSpec& model, const job::JobSpec& job,
                                     const plan::MachineSpec& machine, Division division,
                                     const dispatch::CostFactory& costs, bool informed,
                                     const RunBoth& run_both) {
  if (job.micro_batch_size > 0) return {job.micro_batch_size};
  const int64_t batch = job.global_batch_size / std::max(division.replicas, 1);  // of a replica
  // Where the number of replicas is open, it comes from the microbatches, as in a pipeline.
  const bool divided = division.sets == DeviceSets::kAll && division.replicas > 0;
  const int64_t large = divided ? batch : batch / kReferenceDevices;
  int64_t least = LeastMicrobatch(job);
  while (least < batch && batch % least != 0) ++least;
  const int64_t most =
      informed ? batch : std::max(std::clamp<int64_t>(large, 1, kLargestBlindMicrobatch), least);
  std::vector<int64_t> sizes;
  for (int64_t size = most; size >= least; --size) {
    if (batch % size == 0) sizes.push_back(size);
  }
  if (!informed) return sizes;
  // A bound takes as long as there are microbatches: the smaller sizes longest.
  std::vector<std::optional<Nanos>> times(sizes.size());
  std::array<std::vector<size_t>, 2> halves;
  std::array<int64_t, 2> work{};
  for (size_t i = sizes.size(); i-- > 0;) {
    const size_t half = work[1] < work[0] ? 1 : 0;
    halves[half].push_back(i);
    work[half] += std::min<int64_t>(job.global_batch_size / sizes[i], kMostFollowed);
  }
  const auto time_all = [&](const std::vector<size_t>& half) {
    for (size_t i : half) {
      times[i] = ReferenceTime(model, job, machine, division, costs, sizes[i]);
    }
  };
  run_both([&] { time_all(halves[0]); }, [&] { time_all(halves[1]); });
  // The largest that is nearly the best comes first, then the smaller ones, which need less memory.
  std::optional<Nanos> best;
  for (const std::optional<Nanos>& time : times) {
    if (time && (!best || *time < *best)) best = time;
  }
  const double enough = best ? static_cast<double>(best->count()) * kWorthIt : 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (times[i] && static_cast<double>(times[i]->count()) <= enough) {
      sizes.erase(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
  return sizes;
}

}  // namespace harmony::planner
