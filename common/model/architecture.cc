#include "common/model/architecture.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/causal_lm.h"

namespace harmony::model {

absl::StatusOr<Architecture> ParseArchitecture(absl::string_view json, absl::string_view where) {
  if (IsExportedModel(json)) {
    HARMONY_ASSIGN_OR_RETURN(ExportedModel exported, ParseExportedModel(json, where));
    return exported;
  }
  HARMONY_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(json, where));
  return config;
}

absl::StatusOr<int64_t> SequenceLengthFor(const Architecture& architecture, int64_t wanted) {
  if (const auto* config = std::get_if<ModelConfig>(&architecture); config != nullptr) {
    HARMONY_RETURN_IF_ERROR(CheckSequenceLength(*config, wanted));
    return wanted;
  }
  const SequenceLengths& exported = std::get<ExportedModel>(architecture).sequence_length;
  if (exported.most == 0) return 1;
  if (exported.least <= wanted && wanted <= exported.most) return wanted;
  const std::string lengths = exported.free ? absl::StrCat(exported.least, " to ", exported.most)
                                            : absl::StrCat(exported.most);
  return absl::InvalidArgumentError(
      absl::StrCat("sequence_length is ", wanted, ", but the model was exported for ", lengths,
                   ": give sequence_length: ", lengths, ", or export it for ", wanted));
}

ModelSpec BuildModelSpec(const Architecture& architecture, int64_t sequence_length,
                         DType activations) {
  if (const auto* config = std::get_if<ModelConfig>(&architecture); config != nullptr) {
    return BuildModelSpec(*config, sequence_length, activations);
  }
  return BuildModelSpec(std::get<ExportedModel>(architecture).AtLength(sequence_length));
}

}  // namespace harmony::model
