#pragma once

// Writes one safetensors file, tensor by tensor.

#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/atomic_file.h"
#include "common/io/safetensors.h"

namespace harmony::io {

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

// The file appears under its name only after Finish has read it back and found what was written.
// Before that, destruction leaves nothing behind. Not thread-safe; memory used beside the caller's:
// a small conversion buffer.
class SafetensorsWriter {
 public:
  // Lays the file out and reserves its space. Wide types first, then in the order given, so that
  // every tensor is aligned.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<TensorToWrite>& tensors,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // In any order, each tensor once: of fp32 values, converted to the tensor's type, or (WriteBytes)
  // as it is. REQUIRES: values.size() is the tensor's number of elements, bytes.size() its size.
  absl::Status WriteTensor(absl::string_view name, absl::Span<const float> values);
  absl::Status WriteBytes(absl::string_view name, absl::Span<const std::byte> bytes);

  // From now on every call looks whether it is cancelled (common/base/cancel.h).
  void set_cancelled(const std::atomic<bool>* cancelled) { cancelled_ = cancelled; }

  // Syncs, reads the file back (header, shapes, count, checksum of each tensor's bytes against what
  // was written; DataLoss when they differ), and renames it into place.
  absl::Status Finish();

 private:
  SafetensorsWriter(AtomicFile file, std::vector<SafetensorsEntry> entries)
      : file_(std::move(file)), entries_(std::move(entries)) {}
  absl::Status Verify();

  struct Written {
    bool done = false;
    uint64_t hash = 0;  // XXH3 of the tensor's bytes
  };
  AtomicFile file_;
  std::vector<SafetensorsEntry> entries_;  // by offset
  std::map<std::string, int, std::less<>> index_;
  std::vector<Written> written_;
  const std::atomic<bool>* cancelled_ = nullptr;
};

}  // namespace harmony::io
