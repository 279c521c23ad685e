#pragma once

// What a job needs before it goes on, when it has waited or was paused: a plan for the devices that
// are there now, and the data that it began with.

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "coordinator/service/jobs/admission.h"
#include "coordinator/store/job_record.h"

namespace harmony::service {

// Whether there are as many devices as the plan is for, each with as much memory.
bool PlannedFor(const plan::Plan& plan, const plan::MachineSpec& machine);

// Searches a plan of the recorded job for these devices and puts it into the record. What fixes the
// result stays, so results stay bit-identical. Times that were measured on the devices before count
// only where they are of these as well. An error leaves the record as it is, and says what does not
// fit. Takes seconds; any thread.
absl::Status PlanAnew(const plan::MachineSpec& machine, const HostLimits& limits,
                      store::JobRecord* record);

// What a paused job would fail of, were it resumed now: FailedPrecondition says why. Plans it anew
// where the devices are others. Any thread.
absl::Status MakeReadyToResume(const plan::MachineSpec& machine, const HostLimits& limits,
                               store::JobRecord* record);

}  // namespace harmony::service
