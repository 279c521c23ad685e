#pragma once

// Writes a Hugging Face directory that `from_pretrained` loads.

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/weight_map.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"

namespace harmony::io {

// One tensor of the model, in the type of its weight: a view of where it lies, valid until the next
// call.
using TensorValues = std::function<absl::Span<const std::byte>(const model::ParamBlock& block,
                                                               const model::TensorSpec& tensor)>;

// Of what a run goes on with, every tensor once; or of what is left when it is over: those that the
// model's own state has, a tied one under each of its names where the model wants that.
enum class WeightsFor { kCheckpoint, kFinal };

// The weights as one safetensors file at `path`, by the map's names and types. Atomic, and verified
// by reading back (SafetensorsWriter). `cancelled`, here and below: see common/base/cancel.h.
absl::Status WriteWeights(const std::string& path, const model::ModelSpec& model,
                          const WeightMap& weights, const TensorValues& values, WeightsFor what,
                          const std::atomic<bool>* cancelled = nullptr);

// What a job's final/ has for what was trained; nothing: what the source has (WeightMap).
std::optional<DType> ExportTypeOf(const job::JobSpec& job);

// What belongs beside the weights, into an existing directory: the config.json that the job was
// described by (`config_json`, verbatim), or for an exported model, which a model.json describes,
// that of `source_directory`, if it has one; and its tokenizer and generation files. An empty
// source, or one that is gone by now, is fine. `type`: what config.json says then that the weights
// are, where it says so.
absl::Status WriteModelFiles(const std::string& directory, absl::string_view config_json,
                             const std::string& source_directory,
                             std::optional<DType> type = std::nullopt);

// These and model.safetensors. `directory` appears whole or not at all; what it held before is
// replaced.
absl::Status ExportModel(const std::string& directory, const model::ModelSpec& model,
                         const WeightMap& weights, const TensorValues& values,
                         absl::string_view config_json, const std::string& source_directory,
                         const std::atomic<bool>* cancelled = nullptr);

}  // namespace harmony::io
