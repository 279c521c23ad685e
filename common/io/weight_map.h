#pragma once

// How a model's tensors are called and typed in a checkpoint: read from the source, kept with the
// job, and used again for the export, so that what comes out looks like what came in.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/safetensors.h"
#include "common/model/model_spec.h"

namespace harmony::io {

class WeightMap {
 public:
  struct Stored {
    std::string name;
    DType dtype = DType::kF32;
    bool operator==(const Stored&) const = default;
  };

  // Hugging Face's names, F32: for models that were not loaded.
  static WeightMap ForNewModel(const model::ModelSpec& model);

  // Finds every tensor of the model in the checkpoint, by its name with or without the optional
  // prefix (CheckpointNames). InvalidArgument names tensors that are missing, of another shape or
  // type, or not expected. Ignored: what CheckpointNames says, and aliases of tied tensors.
  static absl::StatusOr<WeightMap> Match(const model::ModelSpec& model,
                                         const CheckpointReader& reader);

  // REQUIRES: a tensor of the model.
  const Stored& of(const model::TensorSpec& tensor) const { return stored_.at(tensor.name); }

  // The same names, and `dtype` for all that is F32 in the model; all else is stored as it is.
  // REQUIRES: IsFloatForUs(dtype).
  WeightMap WithType(const model::ModelSpec& model, DType dtype) const;

  // For checkpoints and the job database. FromJson checks that every tensor of the model is there.
  std::string ToJson() const;
  static absl::StatusOr<WeightMap> FromJson(absl::string_view json, const model::ModelSpec& model,
                                            absl::string_view where);
  bool operator==(const WeightMap&) const = default;

 private:
  std::map<std::string, Stored> stored_;  // by TensorSpec::name
};

}  // namespace harmony::io
