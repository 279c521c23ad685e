#include "worker/device/lent_places.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "common/base/mutex.h"

namespace harmony::worker {
namespace {

// What takes less than such a part of a place is not put there: it gains little, and keeps out what
// is as large as the place, of which there is much, for a layer's values are of few sizes.
// Of bench/layer_memory.py, last layers of few classes took up to 3% more than eager PyTorch with a
// part of 16, and T5's blocks 2 to 3% more than with this one with a part of 512.
constexpr size_t kSmall = 64;

thread_local LentPlaces* of_thread = nullptr;

// All that live, for a free by another thread than the one that took. One in a worker.
struct Living {
  Mutex mutex;
  std::vector<LentPlaces*> all ABSL_GUARDED_BY(mutex);

  static Living& Get() {
    static Living* living = new Living;  // outlives every static tensor
    return *living;
  }
};

}  // namespace

LentPlaces::LentPlaces() {
  Living& living = Living::Get();
  MutexLock lock(living.mutex);
  living.all.push_back(this);
  of_thread = this;
}

LentPlaces::~LentPlaces() {
  Living& living = Living::Get();
  MutexLock lock(living.mutex);
  std::erase(living.all, this);
  of_thread = nullptr;
}

LentPlaces::Work::Work(LentPlaces& places) : places_(places) {
  MutexLock lock(Living::Get().mutex);
  for (Place& place : places_.places_) {
    place.stated = false;
    place.needed_at = place.reclaimed ? 0 : kLater;
  }
  places_.works_ = true;
  places_.FindNextNeed();
}

LentPlaces::Work::~Work() {
  MutexLock lock(Living::Get().mutex);
  places_.places_.remove_if([](const Place& place) { return place.in_work; });
  places_.works_ = false;
}

void LentPlaces::Add(void* place, size_t bytes, int needed_at) {
  auto* const begin = static_cast<std::byte*>(place);
  MutexLock lock(Living::Get().mutex);
  auto found = std::find_if(places_.begin(), places_.end(),
                            [&](const Place& other) { return other.begin == begin; });
  if (found == places_.end()) {
    const bool aligned = reinterpret_cast<uintptr_t>(begin) % kSlotAlignment == 0;
    const Bytes lent(aligned ? static_cast<int64_t>(bytes) : 0);
    places_.push_back({begin, bytes, needed_at, BestFit(lent), works_});
    found = std::prev(places_.end());
  }
  found->needed_at = found->stated ? std::min(found->needed_at, needed_at) : needed_at;
  found->stated = found->lent = true;
  found->reclaimed = false;
  FindNextNeed();
}

void LentPlaces::Add(const DeviceTensor& place, int needed_at) {
  const int64_t bytes = (SizeOf(place.dtype) * place.elements()).count();
  Add(reinterpret_cast<void*>(place.address.value()), static_cast<size_t>(bytes), needed_at);
}

void LentPlaces::Reclaim() {
  MutexLock lock(Living::Get().mutex);
  for (Place& place : places_) {
    place.lent = place.reclaimed = place.fit.usage().current > Bytes();
  }
}

void LentPlaces::FindNextNeed() {
  next_need_ = kNever;
  for (const Place& place : places_) {
    if (place.lent) next_need_ = std::min(next_need_, place.needed_at);
  }
}

bool LentPlaces::Lends(const void* data, int time) const {
  return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
    return place.lent && place.needed_at <= time && place.Contains(data);
  });
}

bool LentPlaces::Contains(const void* data) const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const Place& place) { return place.Contains(data); });
}

bool LentPlaces::Recall(int time) {
  MutexLock lock(Living::Get().mutex);
  for (Place& place : places_) {
    if (place.needed_at <= time && place.fit.usage().current == Bytes()) place.lent = false;
  }
  FindNextNeed();
  return next_need_ > time;
}

LentPlaces::Lending::Lending(LentPlaces& places, int last) : places_(places) {
  places_.lends_ = true;
  places_.last_ = last;
}

LentPlaces::Lending::~Lending() {
  places_.lends_ = false;
  for (Place& place : places_.places_) place.offered = false;
}

void LentPlaces::Lending::Offer(const void* place) {
  for (Place& own : places_.places_) own.offered |= own.begin == place;
}

void* LentPlaces::Take(size_t bytes) {
  if (of_thread == nullptr || !of_thread->lends_) return nullptr;
  MutexLock lock(Living::Get().mutex);
  for (Place& place : of_thread->places_) {
    if (!place.offered || place.taken || place.bytes != bytes) continue;
    place.taken = true;
    return place.begin;
  }
  for (Place& place : of_thread->places_) {
    if (!place.lent || place.needed_at <= of_thread->last_) continue;
    if (bytes < place.bytes / kSmall) continue;
    const std::optional<Bytes> offset = place.fit.Take(Bytes(static_cast<int64_t>(bytes)));
    if (offset.has_value()) return place.begin + offset->count();
  }
  return nullptr;
}

bool LentPlaces::Give(void* data) {
  Living& living = Living::Get();
  MutexLock lock(living.mutex);
  for (LentPlaces* places : living.all) {
    for (Place& place : places->places_) {
      if (!place.Contains(data)) continue;
      if (place.lent) return place.fit.Give(Bytes(static_cast<std::byte*>(data) - place.begin));
      const bool given = place.taken && data == place.begin;
      if (given) place.taken = false;
      return given;
    }
  }
  return false;
}

}  // namespace harmony::worker
