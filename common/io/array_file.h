#pragma once

// An array of samples in a file: a NumPy array (.npy), or a tensor of a safetensors file. The
// leading dimension counts samples.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/io/file.h"
#include "common/model/value_range.h"

namespace harmony::io {

struct ArrayHeader {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of the numbers, in bytes from the start of the file
};

// The header of a .npy file, of versions 1 to 3; `start` are the file's first bytes.
// InvalidArgument names the file (`where`) and what is wrong or cannot be used: Fortran order,
// other byte orders, types without a counterpart, a size that does not agree with the file's.
absl::StatusOr<ArrayHeader> ParseNpyHeader(absl::string_view start, int64_t file_size,
                                           absl::string_view where);

// Immutable after Open; all methods may be called from several threads. Reads by pread, as
// TokenFile does and for its reason.
class ArrayFile {
 public:
  // `tensor` is the name in a safetensors file. InvalidArgument when the file is neither kind, has
  // no such tensor, or the array has no dimension.
  static absl::StatusOr<ArrayFile> Open(const std::string& path, absl::string_view tensor);

  const File& file() const { return file_; }
  const std::string& path() const { return file_.path(); }
  DType dtype() const { return header_.dtype; }
  const std::vector<int64_t>& shape() const { return header_.shape; }
  int64_t samples() const { return header_.shape[0]; }
  int64_t sample_bytes() const { return sample_bytes_; }

  // REQUIRES: first + count <= samples(); `out` has room for them.
  absl::Status Read(int64_t first, int64_t count, void* out) const;

  // The place of the first integer that is none of the range, as numbers of the sample and in it;
  // -1 when there is none. Reads the whole file once, in pieces. InvalidArgument when numbers of
  // the file's type have no ranges. REQUIRES: the range is bounded.
  struct OutOfRange {
    int64_t sample = -1, position = 0, value = 0;
  };
  absl::StatusOr<OutOfRange> FindOutOfRange(const model::ValueRange& range) const;

 private:
  ArrayFile(File file, ArrayHeader header, int64_t sample_bytes)
      : file_(std::move(file)), header_(std::move(header)), sample_bytes_(sample_bytes) {}

  File file_;
  ArrayHeader header_;
  int64_t sample_bytes_;
};

}  // namespace harmony::io
