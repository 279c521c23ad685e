#pragma once

// What a model's own file says of it, whichever of the sources it is: a config.json of a built-in
// family, or the model.json of an exported model. Jobs carry that text; everybody who needs the
// description makes it from there. PURE.

#include <cstdint>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/exported_model.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace harmony::model {

using Architecture = std::variant<ModelConfig, ExportedModel>;

// Errors are those of ParseModelConfig or ParseExportedModel.
absl::StatusOr<Architecture> ParseArchitecture(absl::string_view json, absl::string_view where);

// The length of the sequences that a job trains on which asks for `wanted`: 1 where the model reads
// no sequences. InvalidArgument when the model cannot take that length (names both numbers); errors
// of CheckSequenceLength.
absl::StatusOr<int64_t> SequenceLengthFor(const Architecture& architecture, int64_t wanted);

// The description, for a length that SequenceLengthFor returned. `activations`: of the built-in
// families; an exported model has the types that it was exported with.
ModelSpec BuildModelSpec(const Architecture& architecture, int64_t sequence_length,
                         DType activations = DType::kF32);

// Whether the times of its layers follow from their FLOPs: those of the built-in families are
// products of matrices. Of an exported model nothing is known: convolutions, gathers and norms run
// at very different speeds.
inline bool TimesFollowFlops(const Architecture& architecture) {
  return std::holds_alternative<ModelConfig>(architecture);
}

}  // namespace harmony::model
