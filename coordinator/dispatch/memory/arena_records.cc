#include "coordinator/dispatch/memory/arena_records.h"

#include <iterator>

#include "absl/algorithm/container.h"

namespace harmony::dispatch {

ArenaRecords::ArenaRecords(const command::ObjectTableLayout& table,
                           absl::Span<const command::ObjectView> records) {
  for (int i = 0; i < static_cast<int>(records.size()); ++i) {
    const command::ObjectKind kind = table.KeyOf(i).kind;
    if (records[i].state == command::ObjectState::kFree) continue;
    if (kind != command::ObjectKind::kGradient && kind != command::ObjectKind::kBoundaryGradient)
      continue;
    Add(records[i].offset, {i, records[i].offset + records[i].size, {}});
  }
}

void ArenaRecords::Add(Bytes begin, const Claim& claim) {
  claims_.insert_or_assign(begin, claim);
  if (claim.renewed_by.value == 0) standing_[claim.record].push_back(begin);
}

void ArenaRecords::Remove(Bytes at, const Claim& claim) {
  if (claim.renewed_by.value > 0) return;
  auto& standing = standing_.at(claim.record);
  standing.erase(absl::c_find(standing, at));
}

std::vector<int> ArenaRecords::Place(int record, Bytes begin, Bytes end, uint32_t lane,
                                     uint64_t value, Users& after) {
  std::vector<int> retire;
  retire.reserve(2);  // mostly
  retire.push_back(record);
  if (const auto own = standing_.find(record); own != standing_.end()) {
    for (const Bytes at : own->second) claims_.at(at).renewed_by = {lane, value};
    standing_.erase(own);
  }
  if (const auto others = freed_by_.find(record); others != freed_by_.end()) {
    for (const command::SemaphoreWait& freed : others->second.waits) {
      if (freed.semaphore != lane) after.Add(freed.semaphore, freed.value, Nanos());
    }
    freed_by_.erase(others);
  }
  // What was there is gone.
  const auto displace = [&](Bytes at, const Claim& claim) {
    Remove(at, claim);
    if (claim.renewed_by == command::SemaphoreWait{lane, value}) return;
    if (claim.renewed_by.value > 0) {
      after.Add(claim.renewed_by.semaphore, claim.renewed_by.value, Nanos());
      return;
    }
    // Parts of one object lie apart where something was put in its middle.
    if (!absl::c_linear_search(retire, claim.record)) retire.push_back(claim.record);
    freed_by_[claim.record].Add(lane, value, Nanos());
  };
  const Claim placed{record, end, {}};
  auto at = claims_.lower_bound(begin);
  if (at != claims_.end() && at->first == begin && at->second.end == end) {  // mostly
    displace(begin, at->second);
    at->second = placed;
    standing_[record].push_back(begin);
    return retire;
  }
  if (at != claims_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != claims_.end() && at->first < end) {
    const auto [from, claim] = *at;
    claims_.erase(at);
    displace(from, claim);
    // The rest is destroyed by others, which free the record too.
    if (from < begin) Add(from, {claim.record, begin, claim.renewed_by});
    if (end < claim.end) Add(end, claim);
    at = claims_.lower_bound(begin);
  }
  Add(begin, placed);
  return retire;
}

}  // namespace harmony::dispatch
