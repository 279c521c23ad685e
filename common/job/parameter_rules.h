#pragma once

// A model as a job trains it: its description, with what the job's parameter_rules say of each
// parameter. PURE.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/model/architecture.h"
#include "common/model/model_spec.h"

namespace harmony::job {

// Everybody who carries a job out takes the description from here, so that all have the same one.
// The job's sequence_length is one that SequenceLengthFor returned. Errors of ApplyParameterRules,
// and InvalidArgument when the model cannot be trained in the job's precision.
absl::StatusOr<model::ModelSpec> ModelOf(const model::Architecture& architecture,
                                         const JobSpec& job);
// The same with the type of gradients that the plan of the job has (plan::Plan::gradient_dtype), or
// is tried with; `auto` is fp32 above.
absl::StatusOr<model::ModelSpec> ModelOf(const model::Architecture& architecture,
                                         const JobSpec& job, DType gradient_dtype);

// Writes into each trained parameter what the first rule that fits it says. A name fits a pattern
// by fnmatch(3) without flags: '*' is any text, dots included, '?' one byte, "[0-3]" one of those.
// InvalidArgument names a rule that decides no parameter, and why.
absl::Status ApplyParameterRules(const JobSpec& job, model::ModelSpec* model);

}  // namespace harmony::job
