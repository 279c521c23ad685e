#include "common/plan/planned_job.h"

#include "common/base/status.h"
#include "common/job/parameter_rules.h"

namespace harmony::plan {

absl::StatusOr<model::ModelSpec> ModelOn(const MachineSpec& machine,
                                         const model::Architecture& architecture,
                                         const job::JobSpec& job, DType gradient_dtype) {
  HARMONY_ASSIGN_OR_RETURN(model::ModelSpec model, job::ModelOf(architecture, job, gradient_dtype));
  model.on_gpus = machine.on_gpus();
  return model;
}

}  // namespace harmony::plan
