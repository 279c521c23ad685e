#include "coordinator/dispatch/memory/region_ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace harmony::dispatch {

void Users::Add(uint32_t semaphore, uint64_t value, Nanos at) {
  finish = std::max(finish, at);
  for (command::SemaphoreWait& wait : waits) {
    if (wait.semaphore != semaphore) continue;
    wait.value = std::max(wait.value, value);
    return;
  }
  waits.push_back({semaphore, value});
}

void Users::Merge(const Users& other) {
  finish = std::max(finish, other.finish);
  for (const command::SemaphoreWait& wait : other.waits) Add(wait.semaphore, wait.value, finish);
}

bool RegionLedger::IsFree(Bytes begin, Bytes end) const {
  return std::none_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    return piece.held && piece.begin < end && begin < piece.end;
  });
}

std::optional<Bytes> RegionLedger::FirstFree(Bytes begin, Bytes end, Bytes size) const {
  Bytes at = begin;
  for (const Piece& piece : pieces_) {
    if (piece.begin >= at + size) break;
    if (piece.held) at = std::max(at, piece.end);
  }
  return at + size <= end ? std::optional(at) : std::nullopt;
}

Users RegionLedger::HoldPieces(Bytes begin, absl::Span<const Bytes> sizes) {
  const Bytes end = std::accumulate(sizes.begin(), sizes.end(), begin);
  Users users;
  std::vector<Piece> kept;
  kept.reserve(pieces_.size() + sizes.size() + 1);
  bool placed = false;
  auto place = [&] {
    if (placed) return;
    placed = true;
    Bytes at = begin;
    for (const Bytes size : sizes) {
      if (size.count() == 0) continue;
      Piece& piece = kept.emplace_back();
      piece.begin = at;
      piece.end = at += size;
      piece.held = true;
    }
  };
  for (Piece& piece : pieces_) {
    if (piece.begin >= end) place();
    if (piece.end <= begin || piece.begin >= end) {
      kept.push_back(std::move(piece));
      continue;
    }
    users.Merge(piece.users);
    if (piece.begin < begin) {
      kept.push_back(piece);
      kept.back().end = begin;
    }
    if (piece.end > end) {
      place();
      kept.push_back(std::move(piece));
      kept.back().begin = end;
    }
  }
  place();
  pieces_ = std::move(kept);
  held_ += end - begin;
  peak_ = std::max(peak_, held_);
  return users;
}

void RegionLedger::Release(Bytes begin, const Users& users) {
  for (Piece& piece : pieces_) {
    if (piece.begin != begin || !piece.held) continue;
    piece.held = false;
    piece.users = users;
    held_ -= piece.end - piece.begin;
    return;
  }
}

}  // namespace harmony::dispatch
