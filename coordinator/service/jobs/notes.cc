#include "coordinator/service/jobs/notes.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/training_data.h"
#include "common/model/known_keys.h"

namespace harmony::service {

std::vector<std::string> NotesOn(const io::ModelSource& source, const model::ModelSpec& model,
                                 const job::JobSpec& job) {
  std::vector<std::string> notes;
  if (job.warmup_steps > 0 && job.lr_scheduler_type == job::ScheduleKind::kConstant) {
    notes.push_back(
        "warmup_steps has no effect with lr_scheduler_type: constant (the default here); give "
        "constant_with_warmup, linear or cosine");
  }
  if (!job.data_path.empty() && io::ShiftsLabels(model)) {
    notes.push_back(
        "the model's loss looks at labels from the second one on, as one that shifts them itself: "
        "the labels that it gets of data.path are the tokens of a sequence, not the ones after "
        "them");
  }
  const bool exported = !std::holds_alternative<model::ModelConfig>(source.architecture);
  if (!job.data_path.empty() && exported && !model.counted_labels.has_value()) {
    notes.push_back(
        "the model's labels are not counted, so that nothing says whether its loss shifts them "
        "itself: the labels that it gets of data.path are the tokens after those of a sequence; "
        "for a model that shifts them give arrays (data: {inputs: ...})");
  }
  const auto* const config = std::get_if<model::ModelConfig>(&source.architecture);
  if (config == nullptr) return notes;
  const std::vector<std::string> unknown =
      model::UnknownConfigKeys(config->family, source.config_json);
  if (!unknown.empty()) {
    notes.push_back(
        absl::StrCat("keys of the model's config.json that are not known and have no effect: ",
                     absl::StrJoin(unknown, ", ")));
  }
  if (config->configured_dropout > 0) {
    notes.push_back(absl::StrCat("the model's config asks for dropout ", config->configured_dropout,
                                 "; it is not applied (dropout: 0)"));
  }
  if (source.has_tokenizer && job.data_format == job::DataFormat::kTextBytes) {
    notes.push_back(absl::StrCat(
        "data.format is text-bytes, each byte a token, but ", source.directory,
        " has a tokenizer: encode the text with it and give tokens-u16 or tokens-u32"));
  }
  const int64_t positions = config->max_position_embeddings;
  if (positions > 0 && job.sequence_length > positions) {
    notes.push_back(absl::StrCat("sequence_length ", job.sequence_length, " is longer than the ",
                                 positions,
                                 " positions of the model's config (max_position_embeddings)"));
  }
  return notes;
}

}  // namespace harmony::service
