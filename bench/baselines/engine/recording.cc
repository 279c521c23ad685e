#include "bench/baselines/engine/recording.h"

#include <algorithm>

namespace harmony::baselines {

void Recording::AddDevice(Bytes memory) { free_.push_back({{Bytes(), memory}}); }

Stay Recording::Take(int device, Bytes size) {
  std::deque<Extent>& free = free_[static_cast<size_t>(device)];
  StayPlace place{device, {}};
  for (Bytes left = size; left.count() > 0 && !free.empty();) {
    Extent& first = free.front();
    const Bytes part = std::min(left, first.size);
    if (!place.extents.empty() &&
        place.extents.back().offset + place.extents.back().size == first.offset) {
      place.extents.back().size += part;
    } else {
      place.extents.push_back({first.offset, part});
    }
    left -= part;
    first.offset += part;
    first.size -= part;
    if (first.size.count() == 0) free.pop_front();
  }
  stays_.push_back(std::move(place));
  return static_cast<Stay>(stays_.size() - 1);
}

void Recording::GiveBack(Stay stay) {
  const StayPlace& place = stays_[static_cast<size_t>(stay)];
  std::deque<Extent>& free = free_[static_cast<size_t>(place.device)];
  free.insert(free.end(), place.extents.begin(), place.extents.end());
}

Action& Recording::At(Operation operation) {
  if (actions_.size() <= static_cast<size_t>(operation)) {
    actions_.resize(static_cast<size_t>(operation) + 1);
  }
  return actions_[static_cast<size_t>(operation)];
}

}  // namespace harmony::baselines
