#pragma once

// Which of the swapper's records claim data in the recycled parts of the arena (boundary banks,
// gradient ring), so that the copy that overwrites data first frees their records. PURE.

#include <vector>

#include "absl/types/span.h"
#include "common/base/units.h"
#include "common/plan/objects.h"

namespace harmony {

class ArenaRecords {
 public:
  // From the table (may be empty).
  explicit ArenaRecords(const ObjectTableLayout& table, absl::Span<const ObjectView> records);

  // `record`'s data will lie in [begin, end): the records to be freed first, itself included.
  std::vector<int> Place(int record, Bytes begin, Bytes end);

 private:
  struct Claim {
    int record;
    Bytes begin, end;
  };
  std::vector<Claim> claims_;
};

}  // namespace harmony
