#pragma once

// The training data: a file of tokens, each a byte, or 16 or 32 bits little-endian.

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/file.h"
#include "common/io/fingerprint.h"
#include "common/job/job_spec.h"

namespace harmony::io {

int64_t TokenBytes(job::DataFormat format);

// For as many bytes as a file has when it is opened.
inline constexpr int64_t kWholeFile = std::numeric_limits<int64_t>::max();

// Immutable after Open; all methods may be called from several threads. Reads by pread, not by a
// mapping: a file that is cut while a job runs is an error then, not a fatal signal.
class TokenFile {
 public:
  // The file's first `bytes`, or what there is of them. InvalidArgument when that is nothing or not
  // a whole number of tokens, or begins as a file of another kind does (a NumPy array, an archive,
  // ...): read as tokens, that would train on nothing of sense.
  static absl::StatusOr<TokenFile> Open(const std::string& path, job::DataFormat format,
                                        int64_t bytes = kWholeFile);

  const File& file() const { return file_; }
  const std::string& path() const { return file_.path(); }
  int64_t token_count() const { return token_count_; }
  // Sequence k is tokens [k*T, k*T + T), its labels the next ones: (tokens - 1) / T sequences.
  int64_t SequenceCount(int64_t sequence_length) const;
  static int64_t Sequences(int64_t tokens, int64_t sequence_length);

  // InvalidArgument when there is less than one batch (says how many tokens are missing), when a
  // token is not below vocab_size (names its position), or when the tokens are those of a wider
  // type (every second one, or three of four, are zero). vocab_size 0: the model takes any. Reads
  // the whole file once, in pieces; only its beginning when the format cannot hold a token that is
  // too large.
  absl::Status Validate(int64_t vocab_size, int64_t sequence_length, int64_t global_batch) const;

  // Reads kHashedWhole bytes at most.
  absl::StatusOr<DataFingerprint> Fingerprint() const;

  // Tokens of sequence k and the one after them: out.size() == sequence_length + 1.
  // REQUIRES: 0 <= k < SequenceCount(out.size() - 1).
  absl::Status ReadSequence(int64_t k, absl::Span<int32_t> out) const;

 private:
  TokenFile(File file, job::DataFormat format, int64_t token_count)
      : file_(std::move(file)), format_(format), token_count_(token_count) {}
  absl::Status CheckTokens(int64_t vocab_size) const;
  absl::Status CheckKind(int64_t size) const;
  absl::Status CheckWidth(int64_t vocab_size) const;

  File file_;
  job::DataFormat format_;
  int64_t token_count_;
};

}  // namespace harmony::io
