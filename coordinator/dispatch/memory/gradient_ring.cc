#include "coordinator/dispatch/memory/gradient_ring.h"

namespace harmony::dispatch {

std::optional<GradientRing::Piece> GradientRing::Take(Bytes size) {
  for (Bytes at : {cursor_, begin_}) {
    if (at + size > begin_ + size_ || !ledger_.IsFree(at, at + size)) continue;
    Piece piece{at, at + size, ledger_.Hold(at, at + size)};
    cursor_ = piece.end;
    return piece;
  }
  return std::nullopt;
}

void GradientRing::Pin(Bytes begin, Bytes end) {
  ledger_.Hold(begin, end);
  cursor_ = end;
}

}  // namespace harmony::dispatch
