#pragma once

// Plans that are looked at in a search, in the orders in which they promise to be good. PURE.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {

struct Candidate {
  // Best first: too large for the host, the score, chain and copies of the bound, and the key.
  using Rank = std::tuple<bool, Nanos, Nanos, Nanos, std::string>;

  plan::Plan plan;
  PlanBound bound;
  Nanos score;  // PlanBuilder::Score of the bound
  bool fits_host = true;
  Rank rank;

  const std::string& key() const { return std::get<std::string>(rank); }
  // The same rank by another score: that of a dry run.
  Rank By(Nanos other_score) const {
    Rank by = rank;
    std::get<1>(by) = other_score;
    return by;
  }
};

using RankedCandidates = std::map<Candidate::Rank, Candidate>;

// False when a candidate was not worth keeping: this one, or the last one, in whose place it is.
template <typename Ranked>
bool KeepBest(const Candidate::Rank& rank, const Ranked& candidate, size_t most,
              std::map<Candidate::Rank, Ranked>* best) {
  if (best->size() >= most && rank >= best->rbegin()->first) return false;
  best->emplace(rank, candidate);
  if (best->size() <= most) return true;
  best->erase(std::prev(best->end()));
  return false;
}

inline std::vector<Candidate> Best(const RankedCandidates& candidates, size_t most) {
  std::vector<Candidate> best;
  for (const auto& [rank, candidate] : candidates) {
    if (best.size() == most) break;
    best.push_back(candidate);
  }
  return best;
}

// Devices that a plan's groups run on.
inline std::set<int> UsedBy(const plan::Plan& plan) {
  std::set<int> devices;
  for (const plan::LayerGroup& group : plan.forward_groups) {
    devices.insert(group.devices.begin(), group.devices.end());
  }
  for (const plan::LayerGroup& group : plan.backward_groups) {
    devices.insert(group.devices.begin(), group.devices.end());
  }
  return devices;
}

// Plans whose neighbours are to be looked at; each comes out once.
class ExpansionQueue {
 public:
  using Shared = std::shared_ptr<const Candidate>;

  void Add(const Shared& candidate) { Add(candidate->rank, candidate, &orders_[0]); }
  void AddDryRun(const Candidate::Rank& rank, const Candidate& candidate) {
    Add(rank, std::make_shared<const Candidate>(candidate), &orders_[1]);
  }

  // The best by bounds and by dry runs in turn; null: nothing is left.
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
  using Order = std::map<Candidate::Rank, Shared>;
  // In each order. A search ends after kFruitlessExpansions in vain: what stands so far behind has
  // its turn only where better ones were found again and again, and then they stand before it.
  static constexpr size_t kMost = 2000;

  void Add(const Candidate::Rank& rank, const Shared& candidate, Order* order) {
    if (!taken_.contains(candidate->key())) KeepBest(rank, candidate, kMost, order);
  }

  std::array<Order, 2> orders_;
  size_t turn_ = 0;
  absl::flat_hash_set<std::string> taken_;
};

}  // namespace harmony::planner
