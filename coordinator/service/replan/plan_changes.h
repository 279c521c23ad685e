#pragma once

// A better plan for a run that goes on (docs/replan.md): searched for when its steps drift, told
// of, and taken after the step in flight where the job says so.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "common/plan/machine.h"
#include "coordinator/service/jobs/admission.h"
#include "coordinator/service/jobs/job_registry.h"
#include "coordinator/service/replan/replanner.h"
#include "coordinator/service/run/job_run.h"

namespace harmony::service {

// Of one run after the other. Owner: Coordinator; loop thread only. The machine, the registry and
// the mailbox must outlive it.
class PlanChanges {
 public:
  // `limits`: what there is of the host. `may_change`: neither the run nor this process has been
  // asked to stop.
  PlanChanges(const plan::MachineSpec* machine, JobRegistry* registry, Mailbox* mailbox,
              std::function<HostLimits()> limits, std::function<bool()> may_change)
      : machine_(machine),
        registry_(registry),
        limits_(std::move(limits)),
        may_change_(std::move(may_change)),
        replanner_(mailbox) {}

  // A run of the job of `record` has been made. It stays until Forget, the record until the job has
  // ended.
  void Begin(JobRun* run, store::JobRecord* record);
  // What is still being searched for that run is dropped.
  void Forget() { run_ = nullptr; }

  // Steps drift: searches a plan by what the run has measured, unless a search is under way.
  void OnDrift();
  // What the run knows of searches and changes goes into the job's record, and is saved.
  void KeepState();
  // The run has stopped for the plan that was found, and its checkpoint has been written. Whoever
  // takes the job up from here on, this process or a successor, goes on from it: with the old plan
  // until the record is saved, with the new one after.
  void TakeFound();

 private:
  void OnSearched(const dispatch::CostScales& scales, const ReplanAnswer& answer);

  const plan::MachineSpec* const machine_;
  JobRegistry* const registry_;
  const std::function<HostLimits()> limits_;
  const std::function<bool()> may_change_;
  JobRun* run_ = nullptr;
  store::JobRecord* record_ = nullptr;
  int64_t runs_ = 0;                   // begun so far
  std::optional<ReplanAnswer> found_;  // what the run that is stopping goes on with
  Replanner replanner_;
};

}  // namespace harmony::service
