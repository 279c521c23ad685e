#pragma once

// What a checkpoint's manifest keeps beside the fields of its own (CheckpointManifest::
// details_json): what the export needs, and what else fixes the result.
//
// The files of a checkpoint: config.json (verbatim) and tokenizer files of the source,
// model.safetensors (fp32 master weights, Hugging Face's names), and for AdamW
// optimizer.safetensors (moments, "exp_avg.<name>" and "exp_avg_sq.<name>").

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/fingerprint.h"

namespace harmony::io {

struct CheckpointDetails {
  int64_t data_position = 0;     // sequences consumed
  std::string job_json;          // JobSpecToJson
  std::string weight_map_json;   // WeightMap::ToJson: names and types for the export
  std::string source_directory;  // the model directory; empty for a preset
  int64_t compute_threads = 0;
  std::string cpu_capability;  // instruction set the optimizer ran with
  uint64_t seed = 0;
  std::optional<DataFingerprint> data;  // that the run reads; none: of a version that did not know
  bool operator==(const CheckpointDetails&) const = default;
};

std::string ToJson(const CheckpointDetails& details);
// DataLoss names what is missing or of the wrong type.
absl::StatusOr<CheckpointDetails> CheckpointDetailsFromJson(absl::string_view json,
                                                            absl::string_view where);

}  // namespace harmony::io
