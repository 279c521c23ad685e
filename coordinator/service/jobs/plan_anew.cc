#include "coordinator/service/jobs/plan_anew.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/run_file.h"
#include "common/profile/profile_json.h"
#include "common/rpc/command_codec.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/run/prepare_run.h"

namespace harmony::service {
bool PlannedFor(const plan::Plan& plan, const plan::MachineSpec& machine) {
  if (plan.devices.size() != machine.devices.size()) return false;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    if (plan.devices[d].memory != machine.devices[d].usable()) return false;
  }
  return true;
}

absl::Status PlanAnew(const plan::MachineSpec& machine, const HostLimits& limits,
                      store::JobRecord* record) {
  HARMONY_ASSIGN_OR_RETURN(RunSetup setup, SetupOf(*record, machine));
  planner::PlannerOptions options;
  options.microbatch_size = setup.plan.microbatch_size;
  options.replicas = setup.plan.replicas;
  const bool measured =
      setup.profile != nullptr &&
      profile::CheckProfile(*setup.profile, "profile", setup.model, setup.spec, machine.devices)
          .ok();
  if (measured) options.costs = dispatch::ProfiledCostFactory(setup.profile, setup.model);
  HARMONY_ASSIGN_OR_RETURN(const planner::PlanResult planned,
                           planner::MakePlan(setup.model, setup.spec, machine, options));
  HARMONY_RETURN_IF_ERROR(CheckHost(setup.model, planned.plan, machine, limits));
  record->plan = rpc::SerializePlan(planned.plan);
  record->plan_text = planner::ExplainPlan(setup.model, planned, machine);
  record->replan.clear();  // it is about the devices before
  if (!measured) record->profile.clear();
  return absl::OkStatus();
}

absl::Status MakeReadyToResume(const plan::MachineSpec& machine, const HostLimits& limits,
                               store::JobRecord* record) {
  const auto refuse = [record](const absl::Status& status) {
    return absl::FailedPreconditionError(
        absl::StrCat(record->id(), " cannot go on, and stays paused: ", status.message()));
  };
  HARMONY_ASSIGN_OR_RETURN(const RunSetup setup, SetupOf(*record, machine));
  if (const absl::Status status = io::OpenDataOfRun(setup.spec, setup.model).status();
      !status.ok()) {
    return refuse(status);
  }
  if (PlannedFor(setup.plan, machine)) return absl::OkStatus();
  if (absl::Status status = PlanAnew(machine, limits, record); !status.ok()) return refuse(status);
  return absl::OkStatus();
}

}  // namespace harmony::service
