#pragma once

// The safetensors format: {u64 little-endian header size n; n bytes of JSON; data}. The JSON maps a
// tensor's name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets from the start of the
// data, without holes; "__metadata__" maps strings to strings.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/io/file.h"

namespace harmony::io {

// Values can be read and written of these types only.
inline bool IsFloatForUs(DType dtype) { return dtype <= DType::kF16; }

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // in bytes from the start of the *file*
  int64_t end = 0;

  int64_t elements() const { return (end - begin) / SizeOf(dtype).count(); }
};

// "[768, 2304]"
std::string ShapeString(const std::vector<int64_t>& shape);

// The most bytes the JSON may have.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Bytes of size word and JSON together, from the file's first 8 bytes (or fewer, if it has no
// more). InvalidArgument when they cannot be right for a file of that size.
absl::StatusOr<int64_t> SafetensorsHeaderSize(absl::string_view start, int64_t file_size,
                                              absl::string_view where);

// `start` are the file's first bytes, at least as many as SafetensorsHeaderSize says. Every field
// is checked before it is used; afterwards all entries lie inside the file, do not overlap, leave
// no hole, and their sizes agree with shapes and types. InvalidArgument names the file (`where`)
// and the tensor. The entries are in the order of their offsets.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view start,
                                                                     int64_t file_size,
                                                                     absl::string_view where);

// Reads as much of the file as its header takes, and parses that.
absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(const File& file);

}  // namespace harmony::io
