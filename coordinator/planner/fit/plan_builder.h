#pragma once

// From groups to a whole plan: what of a plan follows from its groups, the job and the machine, and
// whether it fits. PURE.

#include "common/job/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {

// What stays on a device between tasks is a multiple of it.
inline constexpr int64_t kResidentGranule = 4096;

// How the microbatches of a step are divided: see Plan.
struct Division {
  DeviceSets sets = DeviceSets::kSingle;
  int replicas = 1;  // 0: JobSpec::AutoReplicas
  // Gradients leave in so many parts at least, as far as the replicas allow.
  int least_parts = 1;
  bool pass_weights = true;  // where devices share a link to the host
  // So many devices at most, a power of two, add up gradients among themselves, of those that may
  // (plan::FewestParts).
  int add_up = 1;
  double share = 1;  // of a search's work
};

// Those of a plan that is given.
DeviceSets SetsOf(const plan::Plan& plan);
Division DivisionOf(const plan::Plan& plan);

class PlanBuilder {
 public:
  // All must outlive it. REQUIRES: the microbatch divides the job's batch, the replicas the number
  // of microbatches.
  PlanBuilder(const model::ModelSpec& model, const job::JobSpec& job,
              const plan::MachineSpec& machine, int64_t microbatch, Division division = {});

  // A plan without groups: microbatches, devices, eager or deferred as the job says (eager when it
  // leaves that open), two slots.
  plan::Plan Blank() const;
  // The sets of devices that a group may have: single devices and, where the division allows any,
  // neighbours of which there is a power of two, and all devices by their speeds, where these are
  // given and differ; or all devices.
  std::vector<plan::DeviceSet> DeviceChoices() const;
  // Microbatches that a forward task may run, ascending: what divides those of a group with the
  // fewest devices (PlanScorer::Normalize makes them fit the others); 1 alone where the job gives
  // the size.
  std::vector<int> ForwardTaskSizes() const;

  // Fills in what follows from the groups: in how many parts the gradients of each leave (as few as
  // there is memory for), residents, gradient ring, arena. False when a group does not fit its
  // device. The executions are those of the plan, also where it does not fit; where all devices do
  // the same, those of the first, which stand for all (DevicesForAll).
  bool Complete(plan::Plan* plan, StepExecutions* step) const;
  // The same with gradients in the parts that the groups say.
  bool CompleteAsDivided(plan::Plan* plan, StepExecutions* step) const;

  // Host memory of a completed plan, where the machine's is known.
  Bytes ArenaBytes(const plan::Plan& plan) const;
  Bytes SegmentBytes(const plan::Plan& plan) const;  // that has such an arena
  bool FitsHost(const plan::Plan& plan) const;
  // What plans that fit the host are compared by: the step, and a little more for a plan that takes
  // more than 14 bytes of the arena a parameter (deferred updates, or a large gradient ring; two
  // bytes more for each shard but the first, or each device but the first where all may run all
  // groups) and has no need to. The step alone on a host of whose memory half the gradients take
  // little. And those that do not fit it: how often its memory they need, each time a second.
  Nanos Score(const plan::Plan& plan, Nanos step) const;

  const model::ModelSpec& model() const { return model_; }
  const plan::MachineSpec& machine() const { return machine_; }
  const job::JobSpec& job() const { return job_; }
  const Division& division() const { return division_; }
  // The devices are the same but for their names.
  bool alike_devices() const { return alike_devices_; }

 private:
  // So many ranges of a step shared out so that the devices are done at the same time, or nearly.
  plan::DeviceSet SharesBySpeed(int entries) const;
  // Of groups that do not fit with the parts they have, more. False when none has.
  bool RaiseParts(const StepExecutions& step, plan::Plan* plan) const;

  const model::ModelSpec& model_;
  const job::JobSpec& job_;
  const plan::MachineSpec& machine_;
  int64_t microbatch_;
  Division division_;
  int replicas_;
  bool alike_devices_;
  Bytes untied_;  // of all blocks with one reference
};

}  // namespace harmony::planner
