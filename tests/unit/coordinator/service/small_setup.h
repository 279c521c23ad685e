#pragma once

// A run of the small model (small_case.h), for tests of what is done about a run without any
// process.

#include "common/plan/machine.h"
#include "coordinator/service/run/run_setup.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::service {

// Job job-1 with the small plan for so many devices, of a model with so many blocks. What the job
// writes, and for how long it trains, is the test's business.
inline RunSetup SmallSetup(int devices = 1, int blocks = 1) {
  RunSetup setup;
  setup.id = "job-1";
  setup.model = dispatch::SmallModel(blocks);
  setup.plan = dispatch::SmallPlan(setup.model, devices);
  setup.spec.sequence_length = setup.plan.sequence_length;
  setup.spec.global_batch_size = setup.plan.global_batch();
  return setup;
}

// One device, with more than that plan needs.
inline plan::MachineSpec SmallMachine() {
  plan::MachineSpec machine;
  machine.devices = *plan::ParseDevices("sim:mem=1MiB");
  return machine;
}

}  // namespace harmony::service
