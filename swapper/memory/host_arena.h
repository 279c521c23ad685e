#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/units.h"
#include "common/command/command.h"
#include "common/ipc/segment.h"

namespace harmony::swapper {

// The arena and the object table of the segment, as the transfer engine uses them: it reads records
// before it copies out of them and writes gradients, stashes, boundary gradients and losses (of a
// device with copies=worker in its worker; each record has one writer at a time).
//
// Thread-safe as long as no two threads write the same record (the dispatcher sees to that, the
// slot ledger holds it to it).
class HostArena {
 public:
  // `segment` must outlive it.
  explicit HostArena(ipc::Segment* segment) : segment_(segment) {}

  // Reads the extent of the active job (zero without one); call it before a generation's first
  // transfer. DataLoss when the job's header is damaged.
  absl::Status Refresh();

  std::byte* data() const { return segment_->Arena(Bytes(0)); }
  // Allocated bytes of the job, from the start of the arena; only these may be touched.
  Bytes extent() const { return Bytes(extent_.load(std::memory_order_relaxed)); }

  // The record holds the version, clean, and its data contain [offset, offset + size).
  // FailedPrecondition names the object and what was found.
  absl::Status CheckHolds(const command::Expect& expect, Bytes offset, Bytes size) const;

  // Sets a record free, whatever it held. FailedPrecondition when it is not the swapper's to write.
  absl::Status Retire(int record);

  // Publishes the record: its data at [offset, offset + size) are complete.
  absl::Status Publish(const command::Commit& commit, Bytes offset, Bytes size);

 private:
  absl::Status CheckRecordIndex(int record) const;

  ipc::Segment* const segment_;
  std::atomic<int64_t> extent_{0};
  std::atomic<int> record_count_{0};
};

}  // namespace harmony::swapper
