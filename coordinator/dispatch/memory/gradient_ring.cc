#include "coordinator/dispatch/memory/gradient_ring.h"

#include <numeric>

namespace harmony::dispatch {

std::optional<GradientRing::Piece> GradientRing::Take(absl::Span<const Bytes> sizes) {
  const Bytes all = std::accumulate(sizes.begin(), sizes.end(), Bytes());
  for (Bytes at : {cursor_, begin_}) {
    if (at + all > begin_ + size_ || !ledger_.IsFree(at, at + all)) continue;
    Piece piece{{}, ledger_.HoldPieces(at, sizes)};
    for (const Bytes size : sizes) {
      piece.slots.push_back(at);
      at += size;
    }
    cursor_ = at;
    return piece;
  }
  return std::nullopt;
}

void GradientRing::Pin(Bytes begin, Bytes end) {
  ledger_.Hold(begin, end);
  cursor_ = end;
}

}  // namespace harmony::dispatch
