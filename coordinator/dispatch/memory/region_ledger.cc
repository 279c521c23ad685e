#include "coordinator/dispatch/memory/region_ledger.h"

#include <algorithm>
#include <iterator>
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
  return FirstFree(begin, end, end - begin).has_value();
}

std::optional<Bytes> RegionLedger::FirstFree(Bytes begin, Bytes end, Bytes size) const {
  Bytes at = begin;
  for (size_t i = FirstBehind(begin); i < pieces_.size() && at + size <= end; ++i) {
    const Piece& piece = pieces_[i];
    if (piece.begin >= at + size) break;
    if (piece.held) at = std::max(at, piece.end);
  }
  return at + size <= end ? std::optional(at) : std::nullopt;
}

size_t RegionLedger::FirstBehind(Bytes begin) const {
  const auto first = std::partition_point(
      pieces_.begin(), pieces_.end(), [begin](const Piece& piece) { return piece.end <= begin; });
  return static_cast<size_t>(first - pieces_.begin());
}

Users RegionLedger::HoldPieces(Bytes begin, absl::Span<const Bytes> sizes) {
  const Bytes end = std::accumulate(sizes.begin(), sizes.end(), begin);
  const size_t first = FirstBehind(begin);
  size_t behind = first;
  Users users;
  for (; behind < pieces_.size() && pieces_[behind].begin < end; ++behind) {
    const Piece& piece = pieces_[behind];
    users.Merge(piece.users);
  }
  // What takes the place of these: what of them lies outside, and the new ones between.
  made_.clear();
  if (first < behind && pieces_[first].begin < begin) {
    made_.push_back(pieces_[first]);
    made_.back().end = begin;
  }
  Bytes at = begin;
  for (const Bytes size : sizes) {
    if (size.count() == 0) continue;
    Piece& piece = made_.emplace_back();
    piece.begin = at;
    piece.end = at += size;
    piece.held = true;
  }
  if (first < behind && pieces_[behind - 1].end > end) {
    made_.push_back(pieces_[behind - 1]);
    made_.back().begin = end;
  }
  const size_t same = std::min(made_.size(), behind - first);
  const auto place = pieces_.begin() + static_cast<std::ptrdiff_t>(first);
  std::move(made_.begin(), made_.begin() + static_cast<std::ptrdiff_t>(same), place);
  const auto rest = place + static_cast<std::ptrdiff_t>(same);
  if (same < made_.size()) {
    pieces_.insert(rest, std::make_move_iterator(made_.begin() + static_cast<std::ptrdiff_t>(same)),
                   std::make_move_iterator(made_.end()));
  } else {
    pieces_.erase(rest, pieces_.begin() + static_cast<std::ptrdiff_t>(behind));
  }
  held_ += end - begin;
  peak_ = std::max(peak_, held_);
  return users;
}

void RegionLedger::Release(Bytes begin, const Users& users) {
  const size_t at = FirstBehind(begin);
  if (at == pieces_.size() || pieces_[at].begin != begin || !pieces_[at].held) return;
  pieces_[at].held = false;
  pieces_[at].users = users;
  held_ -= pieces_[at].end - pieces_[at].begin;
}

}  // namespace harmony::dispatch
