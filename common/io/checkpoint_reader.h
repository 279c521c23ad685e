#pragma once

// Reads the weights of a Hugging Face directory, or of one safetensors file.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/file.h"
#include "common/io/safetensors.h"

namespace harmony::io {

// Holds the files open and their headers parsed; nothing of the data is kept. After Open it is
// immutable: ReadF32 may be called from several threads.
class CheckpointReader {
 public:
  // `directory` holds model.safetensors, or model.safetensors.index.json and the files it names.
  static absl::StatusOr<CheckpointReader> OpenDirectory(const std::string& directory);
  static absl::StatusOr<CheckpointReader> OpenFile(const std::string& path);

  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  // Null when there is none of that name.
  const SafetensorsEntry* Find(absl::string_view name) const;
  // The file a tensor lies in, for messages. REQUIRES: Find(name) is not null.
  const std::string& PathOf(absl::string_view name) const;

  // Reads one tensor and converts it to fp32 (exact) straight into `out`; beside that only a small
  // buffer is used. InvalidArgument when the tensor's element count is not out.size() or its type
  // is none of F32, BF16, F16.
  absl::Status ReadF32(absl::string_view name, absl::Span<float> out) const;

  // As ReadF32 where `dtype` is F32; tensors of all other types are read as they are, and must be
  // of that type.
  absl::Status Read(absl::string_view name, DType dtype, absl::Span<std::byte> out) const;

  // Whether two tensors are of one type and hold the same bytes. REQUIRES: both are there.
  absl::StatusOr<bool> SameBytes(absl::string_view a, absl::string_view b) const;

 private:
  absl::Status AddFile(const std::string& path);

  std::vector<File> files_;
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, int> file_of_;
};

}  // namespace harmony::io
