#include "coordinator/dispatch/memory/arena_records.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace harmony::dispatch {

ArenaRecords::ArenaRecords(const command::ObjectTableLayout& table,
                           absl::Span<const command::ObjectView> records)
    : standing_(table.size(), Bytes(-1)), freed_by_(table.size()) {
  for (int i = 0; i < static_cast<int>(records.size()); ++i) {
    const command::ObjectKind kind = table.KeyOf(i).kind;
    if (records[i].state == command::ObjectState::kFree) continue;
    if (kind != command::ObjectKind::kGradient && kind != command::ObjectKind::kBoundaryGradient)
      continue;
    Add(i, records[i].offset, records[i].offset + records[i].size);
  }
}

void ArenaRecords::Add(int record, Bytes begin, Bytes end) {
  claims_.insert_or_assign(begin, Claim{record, end, {}});
  standing_[record] = begin;
}

std::vector<int> ArenaRecords::Place(int record, Bytes begin, Bytes end, uint32_t lane,
                                     uint64_t value, Users& after) {
  std::vector<int> retire = {record};
  if (const auto own = claims_.find(standing_[record]); own != claims_.end()) {
    own->second.freed_by = {lane, value};  // wherever it is
  }
  standing_[record] = Bytes(-1);
  const command::SemaphoreWait freed = std::exchange(freed_by_[record], {});
  if (freed.value != 0 && freed.semaphore != lane) after.Add(freed.semaphore, freed.value, Nanos());
  // What was there is gone; returns what frees its record.
  const auto displace = [&](const Claim& claim) {
    if (claim.freed_by.value == 0) {
      retire.push_back(claim.record);
      standing_[claim.record] = Bytes(-1);
      return freed_by_[claim.record] = {lane, value};
    }
    if (claim.freed_by != command::SemaphoreWait{lane, value}) {
      after.Add(claim.freed_by.semaphore, claim.freed_by.value, Nanos());
    }
    return claim.freed_by;
  };
  auto at = claims_.lower_bound(begin);
  if (at != claims_.end() && at->first == begin && at->second.end == end) {  // mostly
    displace(at->second);
    at->second = Claim{record, end, {}};
    standing_[record] = begin;
    return retire;
  }
  if (at != claims_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != claims_.end() && at->first < end) {
    const auto [from, claim] = *at;
    at = claims_.erase(at);
    const command::SemaphoreWait freed_by = displace(claim);
    // What this copy does not overwrite orders others behind it.
    if (from < begin) claims_.insert_or_assign(from, Claim{claim.record, begin, freed_by});
    if (end < claim.end) {
      at = claims_.insert_or_assign(end, Claim{claim.record, claim.end, freed_by}).first;
    }
  }
  Add(record, begin, end);
  return retire;
}

}  // namespace harmony::dispatch
