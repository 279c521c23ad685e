#include "coordinator/core/arena_records.h"

#include <algorithm>
#include <utility>

namespace harmony {

ArenaRecords::ArenaRecords(const ObjectTableLayout& table, absl::Span<const ObjectView> records) {
  for (int i = 0; i < static_cast<int>(records.size()); ++i) {
    const ObjectKind kind = table.KeyOf(i).kind;
    if (records[i].state == ObjectState::kFree) continue;
    if (kind != ObjectKind::kGradient && kind != ObjectKind::kBoundaryGradient) continue;
    claims_.push_back({i, records[i].offset, records[i].offset + records[i].size, {}});
  }
}

std::vector<int> ArenaRecords::Place(int record, Bytes begin, Bytes end, uint32_t lane,
                                     uint64_t value, Users& after) {
  std::vector<int> retire = {record};
  std::vector<Claim> kept;
  kept.reserve(claims_.size() + 2);
  for (Claim& claim : claims_) {
    const bool overlaps = claim.begin < end && begin < claim.end;
    const bool own = claim.record == record && claim.freed_by.value == 0;
    if (!overlaps && !own) {
      kept.push_back(claim);
      continue;
    }
    if (claim.freed_by.value == 0) {
      if (!own) retire.push_back(claim.record);
      claim.freed_by = {lane, value};
    } else {
      after.Add(claim.freed_by.semaphore, claim.freed_by.value, Nanos());
    }
    if (claim.begin < std::min(claim.end, begin)) {
      kept.push_back({claim.record, claim.begin, std::min(claim.end, begin), claim.freed_by});
    }
    if (std::max(claim.begin, end) < claim.end) {
      kept.push_back({claim.record, std::max(claim.begin, end), claim.end, claim.freed_by});
    }
  }
  kept.push_back({record, begin, end, {}});
  claims_ = std::move(kept);
  return retire;
}

}  // namespace harmony
