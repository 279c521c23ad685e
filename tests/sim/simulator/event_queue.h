#pragma once

// Parts of a simulation: what happens when, and things on their way. PURE.

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/units.h"

namespace harmony::sim {

// Events of a virtual clock: the earliest comes first, of those at one time the one added first.
template <typename What>
class EventQueue {
 public:
  struct Entry {
    Nanos at;
    uint64_t order;
    What what;
    bool operator>(const Entry& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  void Add(Nanos at, What what) { entries_.push({at, next_order_++, std::move(what)}); }
  bool empty() const { return entries_.empty(); }
  Nanos next() const { return entries_.top().at; }  // REQUIRES: !empty()
  Entry TakeNext() {                                // REQUIRES: !empty()
    Entry entry = entries_.top();
    entries_.pop();
    return entry;
  }

 private:
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
  uint64_t next_order_ = 0;
};

// Keeps things under numbers, which are used again.
template <typename T>
class Pool {
 public:
  int64_t Keep(T thing) {
    if (free_.empty()) {
      things_.push_back(std::move(thing));
      return static_cast<int64_t>(things_.size()) - 1;
    }
    const int64_t at = free_.back();
    free_.pop_back();
    things_[at] = std::move(thing);
    return at;
  }
  T Take(int64_t at) {
    free_.push_back(at);
    return std::move(things_[at]);
  }

 private:
  std::vector<T> things_;
  std::vector<int64_t> free_;
};

}  // namespace harmony::sim
