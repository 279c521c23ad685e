#include "common/io/checkpoint_export.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/file.h"
#include "common/io/hf_directory.h"
#include "common/io/hf_export.h"
#include "common/io/weight_map.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"

namespace harmony::io {
namespace {

// Of a built-in family the checkpoint has the config.json; an exported model's model.json lies with
// the model only.
absl::StatusOr<ModelSource> OpenModelOf(const std::string& checkpoint,
                                        const std::string& source_directory) {
  std::error_code error;
  if (!source_directory.empty() &&
      std::filesystem::exists(JoinPath(source_directory, "model.json"), error)) {
    return OpenModelSource(source_directory);
  }
  absl::StatusOr<ModelSource> source = OpenModelSource(checkpoint);
  if (source.ok() || source_directory.empty()) return source;
  return absl::Status(source.status().code(),
                      absl::StrCat(source.status().message(),
                                   "; nor is there a model.json of an exported model in ",
                                   source_directory, ", from which this one was trained"));
}

// Hands ExportModel one tensor after the other. It takes no errors: the first one is kept here, and
// stops it.
class TensorsOfCheckpoint {
 public:
  TensorsOfCheckpoint(const CheckpointReader& reader, std::atomic<bool>* stop)
      : reader_(reader), stop_(stop) {}

  absl::Span<const std::byte> Read(const model::TensorSpec& tensor) {
    const DType dtype = tensor.value_dtype();
    const size_t size =
        static_cast<size_t>(tensor.elements) * static_cast<size_t>(SizeOf(dtype).count());
    buffer_.resize(size);
    status_.Update(reader_.Read(tensor.name, dtype, absl::MakeSpan(buffer_)));
    if (!status_.ok()) *stop_ = true;
    return buffer_;
  }
  const absl::Status& status() const { return status_; }

 private:
  const CheckpointReader& reader_;
  std::atomic<bool>* const stop_;
  std::vector<std::byte> buffer_;  // of the allocator's alignment, which is enough for floats
  absl::Status status_;
};

}  // namespace

absl::Status ExportCheckpoint(const CheckpointExport& what, std::atomic<bool>* cancelled) {
  const std::string& path = what.checkpoint;
  HARMONY_ASSIGN_OR_RETURN(const CheckpointManifest manifest, VerifyCheckpoint(path, cancelled));
  HARMONY_ASSIGN_OR_RETURN(const CheckpointDetails details,
                           CheckpointDetailsFromJson(manifest.details_json, path));
  HARMONY_ASSIGN_OR_RETURN(const job::JobSpec job, job::JobSpecFromJson(details.job_json, path));
  HARMONY_ASSIGN_OR_RETURN(ModelSource source, OpenModelOf(path, details.source_directory));
  HARMONY_ASSIGN_OR_RETURN(const model::ModelSpec model, job::ModelOf(source.architecture, job));
  HARMONY_ASSIGN_OR_RETURN(WeightMap stored,
                           WeightMap::FromJson(details.weight_map_json, model, path));
  const std::optional<DType> type = what.dtype ? what.dtype : ExportTypeOf(job);
  if (type) stored = stored.WithType(model, *type);
  HARMONY_ASSIGN_OR_RETURN(const CheckpointReader reader,
                           CheckpointReader::OpenFile(JoinPath(path, "model.safetensors")));
  TensorsOfCheckpoint tensors(reader, cancelled);
  // The checkpoint has the source's tokenizer files, and its config.json, as they were.
  const absl::Status written = ExportModel(
      what.directory, model, stored,
      [&tensors](const model::ParamBlock&, const model::TensorSpec& tensor) {
        return tensors.Read(tensor);
      },
      source.config_json, path, cancelled);
  return tensors.status().ok() ? written : tensors.status();
}

}  // namespace harmony::io
