#include "coordinator/planner/region_estimate.h"

#include <algorithm>
#include <cstddef>

namespace harmony {

bool RegionEstimate::Take(int64_t begin, int64_t end, Use* used) {
  const auto first = std::partition_point(
      pieces_.begin(), pieces_.end(), [begin](const Piece& piece) { return piece.end <= begin; });
  auto last = first;
  for (; last != pieces_.end() && last->begin < end; ++last) {
    if (last->held) return false;
    used->began = std::max(used->began, last->use.began);
    used->ended = std::max(used->ended, last->use.ended);
  }
  Piece fresh[3];
  size_t count = 0;
  if (first < last && first->begin < begin) {
    fresh[count] = *first;
    fresh[count++].end = begin;
  }
  fresh[count++] = {begin, end, true, {}};
  if (first < last && (last - 1)->end > end) {
    fresh[count] = *(last - 1);
    fresh[count++].begin = end;
  }
  const auto replaced = std::min(count, static_cast<size_t>(last - first));
  const auto rest = std::copy(fresh, fresh + replaced, first);
  if (replaced < count) {
    pieces_.insert(rest, fresh + replaced, fresh + count);
  } else {
    pieces_.erase(rest, last);
  }
  return true;
}

void RegionEstimate::Release(int64_t begin, Use use) {
  const auto piece = std::lower_bound(pieces_.begin(), pieces_.end(), begin,
                                      [](const Piece& p, int64_t at) { return p.begin < at; });
  piece->held = false;
  piece->use = use;
}

}  // namespace harmony
