#include "common/io/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "common/base/status.h"

namespace harmony::io {
namespace {

constexpr int64_t kHashedPieceBytes = 1 << 20;

}  // namespace

absl::StatusOr<DataFingerprint> FingerprintOf(const File& file, int64_t size) {
  DataFingerprint result;
  result.bytes = size;
  const int64_t pieces = kHashedWhole / kHashedPieceBytes;
  const auto buffer = std::make_unique<char[]>(kHashedPieceBytes);
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  absl::Status status;
  const bool whole = size <= kHashedWhole;
  for (int64_t i = 0; i < pieces && status.ok(); ++i) {
    const int64_t at =
        whole ? i * kHashedPieceBytes : (size - kHashedPieceBytes) / (pieces - 1) * i;
    if (at >= size) break;
    // The last piece of a large file ends with the file.
    const int64_t from = !whole && i == pieces - 1 ? size - kHashedPieceBytes : at;
    const int64_t length = std::min(kHashedPieceBytes, size - from);
    status = file.ReadAt(from, buffer.get(), length);
    XXH3_64bits_update(state, buffer.get(), static_cast<size_t>(length));
    result.hashed_bytes += length;
  }
  result.hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  if (!status.ok()) return status;
  return result;
}

DataFingerprint Together(const DataFingerprint& first, const DataFingerprint& second) {
  const uint64_t both[] = {first.hash, second.hash};
  return {first.bytes + second.bytes, first.hashed_bytes + second.hashed_bytes,
          XXH3_64bits(both, sizeof(both))};
}

}  // namespace harmony::io
