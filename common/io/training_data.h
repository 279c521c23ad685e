#pragma once

// The training data of a job, as samples: what they bring for each of the model's inputs. A file of
// tokens, cut into sequences with their next tokens as labels, or with some tokens masked and asked
// for; or an array of samples for each input.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/fingerprint.h"
#include "common/io/token_file.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"

namespace harmony::io {

// Immutable; all methods may be called from several threads.
class TrainingData {
 public:
  virtual ~TrainingData() = default;

  // The key and the file, for messages: "data.path: FILE".
  virtual std::string where() const = 0;
  virtual int64_t sample_count() const = 0;

  // InvalidArgument when there is less than one batch, or when a value is not one that the model
  // has (names its place). May read everything once.
  virtual absl::Status Validate(int64_t global_batch) const = 0;

  // Reads a bounded part of what there is.
  virtual absl::StatusOr<DataFingerprint> Fingerprint() const = 0;

  // Whether nothing has been written to the files since they were opened.
  virtual bool IsUnchanged() const = 0;

  // Writes sample k: for each of the model's inputs that the data bring, its part to where `places`
  // says. What is drawn for it follows from `key`, the sample's random number in its step
  // (SampleKey).
  // REQUIRES: 0 <= k < sample_count().
  virtual absl::Status ReadSample(int64_t k, uint64_t key,
                                  absl::Span<std::byte* const> places) const = 0;
};

// Whether the model holds each token against the label after it, as causal models of transformers
// do: its loss looks at all labels of a sample but the first. (One that leaves out the first and
// shifts nothing would look the same; none is known.)
bool ShiftsLabels(const model::ModelSpec& model);

// InvalidArgument when the job's keys do not give what the model reads (says what to give), or a
// file is of another kind, type or shape than they say. Of a file of tokens, the data are its first
// `token_bytes` (kWholeFile: all that it has now); arrays do not grow.
absl::StatusOr<std::unique_ptr<TrainingData>> OpenTrainingData(const job::JobSpec& job,
                                                               const model::ModelSpec& model,
                                                               int64_t token_bytes = kWholeFile);

}  // namespace harmony::io
