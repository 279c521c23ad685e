#pragma once

// The devices that run a layer group. PURE.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_join.h"

namespace harmony::plan {

// A step's microbatches are divided into as many equal ranges as the set has entries, in order;
// entry i is the device that runs range i. One entry: one device runs all, as a stage of a pipeline
// does. All devices once: data parallelism. A device may have several ranges, if they follow each
// other: a faster device more than a slower one. (CheckPlan: as many entries as divide the
// replicas.) A value; cheap to copy with up to eight entries.
class DeviceSet {
 public:
  using Entries = absl::InlinedVector<int16_t, 8>;

  // Most groups run on one device, and are given it as a number.
  DeviceSet(int device = 0) : entries_(1, static_cast<int16_t>(device)) {}
  DeviceSet(std::initializer_list<int> devices) {
    for (int device : devices) entries_.push_back(static_cast<int16_t>(device));
  }
  // In the order given; of integers.
  template <typename Range>
  static DeviceSet Of(const Range& devices) {
    DeviceSet set{};
    set.entries_.assign(devices.begin(), devices.end());
    return set;
  }
  // As many of the first `devices` as divide so many replicas, each once: a power of two.
  static DeviceSet All(int devices, int replicas) {
    int count = 1;
    while (count * 2 <= devices && replicas % (count * 2) == 0) count *= 2;
    return First(count);
  }
  // Devices 0 to `count` - 1, each once.
  static DeviceSet First(int count) {
    DeviceSet set{};
    set.entries_.resize(static_cast<size_t>(count));
    for (int d = 0; d < count; ++d) set.entries_[static_cast<size_t>(d)] = static_cast<int16_t>(d);
    return set;
  }

  int size() const { return static_cast<int>(entries_.size()); }
  int operator[](int i) const { return entries_[static_cast<size_t>(i)]; }
  int front() const { return entries_.front(); }
  Entries::const_iterator begin() const { return entries_.begin(); }
  Entries::const_iterator end() const { return entries_.end(); }
  bool contains(int device) const {
    return std::find(entries_.begin(), entries_.end(), device) != entries_.end();
  }

  // Runs of entries with the same device: what a device does of the group, a shard of it.
  int num_shards() const {
    int runs = 1;
    for (size_t i = 1; i < entries_.size(); ++i) runs += int{entries_[i] != entries_[i - 1]};
    return runs;
  }
  // Each entry twice: the same shares as in half as many.
  bool InPairs() const {
    for (size_t i = 0; i + 1 < entries_.size(); i += 2) {
      if (entries_[i] != entries_[i + 1]) return false;
    }
    return entries_.size() % 2 == 0;
  }
  // The run that entry i belongs to.
  int ShardOfEntry(int i) const {
    int runs = 0;
    for (int at = 1; at <= i; ++at) runs += int{(*this)[at] != (*this)[at - 1]};
    return runs;
  }

  // "0", "0+1+2".
  std::string ToString() const { return absl::StrJoin(entries_, "+"); }
  friend bool operator==(const DeviceSet& a, const DeviceSet& b) {
    return a.entries_ == b.entries_;
  }
  friend bool operator!=(const DeviceSet& a, const DeviceSet& b) { return !(a == b); }

 private:
  Entries entries_;
};

}  // namespace harmony::plan
