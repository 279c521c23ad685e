#include "worker/device/offered_places.h"

#include <algorithm>

namespace harmony::worker {
namespace {

thread_local OfferedPlaces* offered = nullptr;

}  // namespace

OfferedPlaces::OfferedPlaces() { offered = this; }
OfferedPlaces::~OfferedPlaces() { offered = nullptr; }

void OfferedPlaces::Offer(void* place, size_t bytes) { places_.push_back({place, bytes}); }

void* OfferedPlaces::Take(size_t bytes) {
  if (offered == nullptr) return nullptr;
  std::vector<Place>& places = offered->places_;
  const auto found = std::find_if(places.begin(), places.end(),
                                  [&](const Place& place) { return place.bytes == bytes; });
  if (found == places.end()) return nullptr;
  void* const data = found->data;
  places.erase(found);
  offered->taken_ = true;
  return data;
}

}  // namespace harmony::worker
