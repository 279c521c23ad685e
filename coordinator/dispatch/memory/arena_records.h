#pragma once

// Which of the swapper's records claim data in the recycled parts of the arena (boundary banks,
// gradient ring), so that the copy that overwrites data first frees their records. PURE.

#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/units.h"
#include "common/command/objects.h"
#include "coordinator/dispatch/memory/region_ledger.h"

namespace harmony::dispatch {

class ArenaRecords {
 public:
  // From the table (may be empty).
  explicit ArenaRecords(const command::ObjectTableLayout& table,
                        absl::Span<const command::ObjectView> records);

  // The copy that signals (`lane`, `value`) will put `record`'s data into [begin, end). Returns the
  // records that it frees first, itself included. Where another copy, which is issued already,
  // frees a record whose data this one overwrites too, or `record` itself (it would free what this
  // copy has committed), that copy is added to `after`.
  std::vector<int> Place(int record, Bytes begin, Bytes end, uint32_t lane, uint64_t value,
                         Users& after);

 private:
  struct Claim {
    int record;
    Bytes end;
    // The copy that frees the record; value 0: none yet. Then the claim lives on, to order others
    // behind that copy, until all of its range is overwritten.
    command::SemaphoreWait freed_by;
  };
  using Claims = std::map<Bytes, Claim>;  // by where they begin; they do not overlap
  // A claim on [begin, end) that is not freed yet.
  void Add(int record, Bytes begin, Bytes end);

  Claims claims_;
  std::vector<Bytes> standing_;  // by record: where its claim that is not freed begins; -1: none
  std::vector<command::SemaphoreWait>
      freed_by_;  // by record: the last copy of another that freed it
};

}  // namespace harmony::dispatch
