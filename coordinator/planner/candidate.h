#pragma once

// Plans that are looked at in a search, in the orders in which they promise to be good. PURE.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/bounds.h"

namespace harmony {

struct Candidate {
  using Rank = std::tuple<bool, Nanos, Nanos, Nanos, std::string>;  // the last one is the key
  using Promise = std::tuple<bool, Nanos, Rank>;  // the same, by another time first

  Plan plan;
  PlanBound bound;
  Nanos score;     // of the bound
  Nanos estimate;  // the score of the estimate; where none is made: of the bound
  bool fits_host = true;
  Rank rank;

  const std::string& key() const { return std::get<std::string>(rank); }
  Promise By(Nanos time) const { return {!fits_host, time, rank}; }
};

// False when one was not worth keeping: this one, or the last of them, in whose place it is.
template <typename Key, typename Kept>
bool KeepBest(const Key& key, const Kept& candidate, size_t most, std::map<Key, Kept>* best) {
  if (best->size() >= most && key >= best->rbegin()->first) return false;
  best->emplace(key, candidate);
  if (best->size() <= most) return true;
  best->erase(std::prev(best->end()));
  return false;
}

// Devices that a plan's groups run on.
inline std::set<int> UsedBy(const Plan& plan) {
  std::set<int> devices;
  for (const LayerGroup& group : plan.forward_groups) devices.insert(group.device);
  for (const LayerGroup& group : plan.backward_groups) devices.insert(group.device);
  return devices;
}

// Plans whose neighbours are to be looked at; each comes out once.
class Frontier {
 public:
  using Shared = std::shared_ptr<const Candidate>;

  void Add(const Shared& candidate) {
    Add(candidate->score, candidate, &orders_[0]);
    Add(candidate->estimate, candidate, &orders_[1]);
  }
  void AddSimulated(const Shared& candidate, Nanos score) { Add(score, candidate, &orders_[2]); }

  // The best by bounds, by estimates and by simulated times in turn; null: nothing is left.
  Shared Next() {
    for (size_t empty = 0; empty < orders_.size();) {
      auto& order = orders_[turn_++ % orders_.size()];
      if (order.empty()) {
        ++empty;
        continue;
      }
      empty = 0;
      Shared next = std::move(order.begin()->second);
      order.erase(order.begin());
      if (taken_.insert(next->key()).second) return next;
    }
    return nullptr;
  }

 private:
  using Order = std::map<Candidate::Promise, Shared>;
  static constexpr size_t kMost = 2000;  // in each order

  void Add(Nanos time, const Shared& candidate, Order* order) {
    if (!taken_.contains(candidate->key())) KeepBest(candidate->By(time), candidate, kMost, order);
  }

  std::array<Order, 3> orders_;
  size_t turn_ = 0;
  absl::flat_hash_set<std::string> taken_;
};

}  // namespace harmony
