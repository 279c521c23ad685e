#pragma once

// Which of the swapper's records claim data in the recycled parts of the arena (boundary banks,
// gradient ring), so that the copy that overwrites data first frees their records. PURE.

#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
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
  // records that it frees first, itself included: all whose data it destroys a part of, so that
  // copies on several lanes that destroy parts of the same object need no order. Added to `after`
  // are copies that are issued already and must come first: those of others that free `record`, for
  // they would free what this copy has committed; and those that commit anew, elsewhere, a record
  // whose data lay here, for only they may free it.
  std::vector<int> Place(int record, Bytes begin, Bytes end, uint32_t lane, uint64_t value,
                         Users& after);

 private:
  struct Claim {
    int record;
    Bytes end;
    // The copy that commits the record anew, somewhere; value 0: none yet.
    command::SemaphoreWait renewed_by;
  };
  using Claims = absl::btree_map<Bytes, Claim>;  // by where they begin; they do not overlap

  void Add(Bytes begin, const Claim& claim);
  void Remove(Bytes at, const Claim& claim);

  Claims claims_;
  // By record: where what is left of its data begins, until another copy of it is issued.
  absl::flat_hash_map<int, absl::InlinedVector<Bytes, 2>> standing_;
  absl::flat_hash_map<int, Users> freed_by_;  // by record: copies of others, since its last one
};

}  // namespace harmony::dispatch
