#include "coordinator/core/arena_records.h"

#include <algorithm>

namespace harmony {

ArenaRecords::ArenaRecords(const ObjectTableLayout& table, absl::Span<const ObjectView> records) {
  for (int i = 0; i < static_cast<int>(records.size()); ++i) {
    const ObjectKind kind = table.KeyOf(i).kind;
    if (records[i].state == ObjectState::kFree) continue;
    if (kind != ObjectKind::kGradient && kind != ObjectKind::kBoundaryGradient) continue;
    claims_.push_back({i, records[i].offset, records[i].offset + records[i].size});
  }
}

std::vector<int> ArenaRecords::Place(int record, Bytes begin, Bytes end) {
  std::vector<int> retire = {record};
  const auto stale = [&](const Claim& claim) {
    if (claim.record == record) return true;
    if (claim.end <= begin || end <= claim.begin) return false;
    retire.push_back(claim.record);
    return true;
  };
  claims_.erase(std::remove_if(claims_.begin(), claims_.end(), stale), claims_.end());
  claims_.push_back({record, begin, end});
  return retire;
}

}  // namespace harmony
