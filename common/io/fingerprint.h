#pragma once

// What tells one file of data from another.

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/io/file.h"

namespace harmony::io {

// The size of the data and a hash of their bytes. Of a file above kHashedWhole the hash covers
// pieces at equal distances, the first and the last bytes among them.
struct DataFingerprint {
  int64_t bytes = 0;
  int64_t hashed_bytes = 0;  // that the hash covers
  uint64_t hash = 0;         // XXH3, 64 bits
  bool operator==(const DataFingerprint&) const = default;
};
inline constexpr int64_t kHashedWhole = int64_t{64} << 20;

// Of the first `size` bytes of a file; reads kHashedWhole bytes at most.
absl::StatusOr<DataFingerprint> FingerprintOf(const File& file, int64_t size);

// Of several files that belong together, in an order that the caller fixes.
DataFingerprint Together(const DataFingerprint& first, const DataFingerprint& second);

}  // namespace harmony::io
