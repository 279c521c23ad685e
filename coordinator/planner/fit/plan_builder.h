#pragma once

// From groups to a whole plan: what of a plan follows from its groups, the job and the machine, and
// whether it fits. PURE.

#include "common/job/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {

// How the microbatches of a step are divided: see Plan.
struct Division {
  plan::ParallelMode mode = plan::ParallelMode::kPipeline;
  int replicas = 1;
};

class PlanBuilder {
 public:
  // All must outlive it. REQUIRES: the microbatch divides the job's batch, the replicas the number
  // of microbatches.
  PlanBuilder(const model::ModelSpec& model, const job::JobSpec& job,
              const plan::MachineSpec& machine, int64_t microbatch, Division division = {});

  // A plan without groups: microbatches, devices, eager or deferred as the job says (eager when it
  // leaves that open), two slots.
  plan::Plan Blank() const;
  // Microbatches that a forward task may run, ascending: what divides those of a replica; 1 alone
  // where the job gives the size.
  std::vector<int> ForwardTaskSizes() const;

  // Fills in what follows from the groups: residents, gradient ring, arena. False when a group does
  // not fit its device. The executions are those of the plan, also where it does not fit.
  bool Complete(plan::Plan* plan, StepExecutions* step) const;

  // Host memory, where the machine's is known.
  Bytes ArenaBytes(const plan::Plan& plan) const;
  Bytes SegmentBytes(const plan::Plan& plan) const;  // that has such an arena
  bool FitsHost(const plan::Plan& plan) const;
  // What plans are compared by: the step, and a little more for a plan that takes more than 14
  // bytes of the arena a parameter (deferred updates, or a large gradient ring; with replicas two
  // bytes more for each) and has no need to.
  Nanos Score(const plan::Plan& plan, Nanos step) const;

  const model::ModelSpec& model() const { return model_; }
  const plan::MachineSpec& machine() const { return machine_; }
  const job::JobSpec& job() const { return job_; }

 private:
  const model::ModelSpec& model_;
  const job::JobSpec& job_;
  const plan::MachineSpec& machine_;
  int64_t microbatch_;
  Division division_;
  Bytes untied_;  // of all blocks with one reference
};

}  // namespace harmony::planner
