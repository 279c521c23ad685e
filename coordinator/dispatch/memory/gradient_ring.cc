#include "coordinator/dispatch/memory/gradient_ring.h"

#include <numeric>

namespace harmony::dispatch {

std::optional<GradientRing::Piece> GradientRing::Take(absl::Span<const Bytes> sizes) {
  const Bytes all = std::accumulate(sizes.begin(), sizes.end(), Bytes());
  std::optional<Bytes> at = cursor_;
  if (cursor_ + all > begin_ + size_ || !ledger_.IsFree(cursor_, cursor_ + all)) {
    at = ledger_.FirstFree(begin_, begin_ + size_, all);
  }
  if (!at) return std::nullopt;
  Piece piece{{}, ledger_.HoldPieces(*at, sizes)};
  cursor_ = *at;
  for (const Bytes size : sizes) {
    piece.slots.push_back(cursor_);
    cursor_ += size;
  }
  return piece;
}

void GradientRing::Pin(Bytes begin, Bytes end) {
  ledger_.Hold(begin, end);
  cursor_ = end;
}

}  // namespace harmony::dispatch
